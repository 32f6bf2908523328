"""A document of `bench.run` as JSON and as Markdown. The table is made here, never typed."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

__all__ = ["LOSS", "losses", "markdown", "read", "rivals", "summary", "updated", "write_json"]

LOSS = 1.0  # ratio to the best peer below which we lost
BUSY = 0.1  # cores taken by others above which a result is marked
Entry = Mapping[str, Any]


# ---- JSON --------------------------------------------------------------------------------------
def write_json(document: Mapping[str, Any], path: str | Path) -> None:
    """Numbers are kept to four significant digits: more is noise."""
    text = json.dumps(_rounded(document), indent=1, ensure_ascii=False)
    Path(path).write_text(text + "\n", encoding="utf-8")


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list | tuple) else value


def read(path: str | Path) -> dict[str, Any]:
    """A document written by `write_json`; ValueError for another schema."""
    from bench.run import SCHEMA

    document = json.loads(Path(path).read_text(encoding="utf-8"))
    if document.get("schema") != SCHEMA:
        raise ValueError(f"{path}: schema {document.get('schema')!r}, this version reads {SCHEMA}")
    return document


def updated(old: Mapping[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The new document, with those cases of the old one that it does not have."""
    ran = {entry["case"] for entry in new["results"]}
    kept = [entry | {"date": entry.get("date", old["date"])} for entry in old["results"]]
    return new | {"results": [e for e in kept if e["case"] not in ran] + new["results"]}


# ---- what it says ------------------------------------------------------------------------------
def _ours(entry: Entry) -> Mapping[str, Any]:
    return next(row for row in entry["candidates"] if row["role"] == "ours")


def rivals(document: Mapping[str, Any], entry: Entry) -> list[dict[str, Any]]:
    """Peers of an entry, fastest first: name, seconds and ratio, each at its best thread count.

    Whoever may use two threads may also use one. Where a peer is faster with fewer threads, that
    run counts (its ratio is then one of medians of two runs, not taken within rounds).
    """
    ours = _ours(entry).get("seconds")
    if not ours:
        return []
    best: dict[str, dict[str, Any]] = {}
    for other in document["results"]:
        same = (other["case"], other["variant"]) == (entry["case"], entry["variant"])
        if not same or (other["threads"] or 0) > (entry["threads"] or 0):
            continue
        here = other["threads"] == entry["threads"]
        for row in other["candidates"]:
            if row["role"] != "peer" or "seconds" not in row:
                continue
            name = row["name"] if here else f"{row['name']}, {_threads(other['threads'])}"
            ratio = {key: x / ours["median"] for key, x in row["seconds"].items()}
            found = {
                "name": name,
                "seconds": row["seconds"],
                "ratio": row["ratio"] if here else ratio,
            }
            held = best.get(row["name"])
            if held is None or row["seconds"]["median"] < held["seconds"]["median"]:
                best[row["name"]] = found
    return sorted(best.values(), key=lambda peer: peer["seconds"]["median"])


def losses(document: Mapping[str, Any]) -> list[tuple[Entry, dict[str, Any]]]:
    """Every peer that was faster than us, worst first."""
    found = [
        (entry, peer)
        for entry in document["results"]
        for peer in rivals(document, entry)
        if peer["ratio"]["median"] < LOSS
    ]
    return sorted(found, key=lambda pair: pair[1]["ratio"]["median"])


def summary(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Per case and thread count: geometric mean, lowest and highest ratio to the best peer."""
    groups: dict[tuple[str, Any], list[float]] = {}
    for entry in document["results"]:
        for best in rivals(document, entry)[:1]:
            groups.setdefault((entry["case"], entry["threads"]), []).append(best["ratio"]["median"])
    return [
        {
            "case": case,
            "threads": threads,
            "variants": len(ratios),
            "geometric_mean": math.exp(sum(map(math.log, ratios)) / len(ratios)),
            "lowest": min(ratios),
            "highest": max(ratios),
        }
        for (case, threads), ratios in groups.items()
    ]


# ---- Markdown ----------------------------------------------------------------------------------
def markdown(document: Mapping[str, Any]) -> str:
    """The whole report."""
    sections = [_head(document), _overview(document)]
    for case in dict.fromkeys(entry["case"] for entry in document["results"]):
        entries = [entry for entry in document["results"] if entry["case"] == case]
        sections.append(_case(entries, document.get("bandwidth", {})))
    sections += [_losses(document), _left_out(document)]
    return "\n\n".join(sections) + "\n"


def _head(d: Mapping[str, Any]) -> str:
    m = d["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in m["versions"].items())
    lines = [
        "# Benchmarks on the CPU",
        "",
        "Generated by `python -m bench`; `bench/README.md` says how it is measured. A ratio is the "
        "peer's time / ours, within rounds: above 1 we are faster. [..] are quartiles.",
        "",
        f"- date {d['date']}, commit {d['commit']}",
        f"- `{d['command']}`" if d["command"] else f"- size {d['size']}",
        f"- {m['cpu']}, {m['cores']} cores, {m['ram_gib']} GiB, {m['system']}",
        f"- {versions}",
    ]
    if m["blas"]:
        lines.append(f"- math and thread libraries: {', '.join(m['blas'])}")
    if d.get("load_before"):
        before, after = d["load_before"][0], d.get("load_after", d["load_before"])[0]
        lines.append(f"- load average when it began {before}, when it ended {after}")
    for threads, found in d.get("bandwidth", {}).items():
        rates = ", ".join(f"{name} {rate / 1e9:.1f} GB/s" for name, rate in found.items())
        lines.append(f"- memory, {_threads(int(threads))}: {rates} (read and written)")
    if any("memory" in row for entry in d["results"] for row in entry["candidates"]):
        lines.append(f"- peak extra memory: {d['memory_method']}, results included")
    if d["size"] != "full":
        lines.append(f"- **size {d['size']}: shows that it runs, and nothing about speed**")
    return "\n".join(lines)


def _overview(d: Mapping[str, Any]) -> str:
    rows = [
        (
            s["case"],
            _threads(s["threads"]),
            s["variants"],
            f"{s['geometric_mean']:.2f}×",
            f"{s['lowest']:.2f}×",
            f"{s['highest']:.2f}×",
        )
        for s in summary(d)
    ]
    if not rows:
        return "No peer is installed: there is nothing to compare with."
    head = ("case", "threads", "variants", "geometric mean", "lowest", "highest")
    text = "## Ratio to the best peer\n\n" + _table(head, rows)
    every = [
        (
            entry["case"],
            entry["variant"]["label"],
            _threads(entry["threads"]),
            _time(_ours(entry)["seconds"]["median"]),
            best["name"],
            _time(best["seconds"]["median"]),
            _ratio(best["ratio"]),
            _ratio(entry["noise"]),
        )
        for entry in d["results"]
        for best in rivals(d, entry)[:1]
    ]
    head = ("case", "variant", "threads", "ours", "best peer", "its time", "ratio", "A/A")
    return f"{text}\n\n{_table(head, every)}"


def _traffic(entry: Entry, bandwidth: Mapping[str, Mapping[str, float]]) -> str:
    """How much of the memory's bandwidth we use, if every entry fetched its row from there."""
    ours, measured = _ours(entry).get("seconds"), bandwidth.get(str(entry["threads"]))
    if not (ours and measured and "traffic_bytes" in entry):
        return ""
    rate = entry["traffic_bytes"] / ours["median"]
    shares = ", ".join(f"{rate / there:.0%} of a {name}" for name, there in measured.items())
    return f" Without any reuse in caches we move {rate / 1e9:.1f} GB/s: {shares}."


def _case(entries: list[Entry], bandwidth: Mapping[str, Mapping[str, float]]) -> str:
    parts = [f"## {entries[0]['title']}"]
    memory = any("memory" in row for entry in entries for row in entry["candidates"])
    per = entries[0]["per"]
    head = ["", "time", "ratio", "first call"]
    faults = any("page_faults" in row for entry in entries for row in entry["candidates"])
    head += ["each op"] * (per > 1) + ["page faults"] * faults
    head += ["peak extra memory", "cold start"] * memory
    for entry in entries:
        threads = "" if entry["threads"] is None else f", {_threads(entry['threads'])}"
        lines = [f"**{entry['variant']['label']}**{threads}", ""]
        body = [
            _candidate(row, entry, per, memory, faults)
            for row in entry["candidates"]
            if row["status"] != "left out"
        ]
        lines.append(_table(head, body))
        if "noise" in entry:
            lines += ["", f"The same against itself (A/A): {_ratio(entry['noise'])}."]
        lines[-1] += _traffic(entry, bandwidth)
        if (entry.get("others") or 0) > BUSY:
            lines[-1] += f" **Other processes kept {entry['others']:.1f} cores busy.**"
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _candidate(
    row: Mapping[str, Any], entry: Entry, per: int, memory: bool, faults: bool
) -> list[str]:
    name = row["name"]
    if name == entry["best_peer"]:
        name = f"**{name}** (best peer)"
    elif row["role"] == "reference":
        name = f"*{name}*"
    if row["status"] != "timed":
        cells = [name, f"{row['status']}: {row['reason']}", "", ""]
        return cells + [""] * ((per > 1) + faults + 2 * memory)
    cells = [
        name,
        f"{_time(row['seconds']['median'])} [{_time(row['seconds']['q1'])}–"
        f"{_time(row['seconds']['q3'])}]",
        _ratio(row["ratio"]) if "ratio" in row else "",
        _time(row["first_s"]),
    ]
    if per > 1:
        cells.append(_time(row["seconds"]["median"] / per))
    if faults:
        count = row.get("page_faults")
        cells.append("" if count is None else f"{count:,}")
    if memory:
        found = row.get("memory", {})
        if "failed" in found:
            cells += [f"failed: {found['failed']}", ""]
        elif found:
            cells += [_peak(found), _time(found["cold_start_s"])]
        else:
            cells += ["", ""]
    return cells


def _losses(d: Mapping[str, Any]) -> str:
    found = losses(d)
    if not found:
        return "## Losses\n\nNone: no peer was faster in any variant."
    rows = [
        (
            entry["case"],
            entry["variant"]["label"],
            _threads(entry["threads"]),
            peer["name"],
            _ratio(peer["ratio"]),
            _ratio(entry["noise"]),
        )
        for entry, peer in found
    ]
    head = ("case", "variant", "threads", "faster", "ratio", "A/A")
    return "## Losses\n\nEvery peer that was faster, worst first.\n\n" + _table(head, rows)


def _left_out(d: Mapping[str, Any]) -> str:
    lines = [f"- {p['title']}: {p['missing']}" for p in d["peers"] if p["missing"]]
    gone = {p["name"]: p["missing"] for p in d["peers"] if p["missing"]}
    seen = set()
    for entry in d["results"]:
        for row in entry["candidates"]:
            if row["status"] == "left out" and row["reason"] not in gone.values():
                text = f"- {entry['case']}, {entry['variant']['label']}: {row['name']}"
                seen.add(f"{text}: {row['reason']}")
    lines += sorted(seen)
    return "## Left out\n\n" + ("\n".join(lines) or "Nothing.")


# ---- cells -------------------------------------------------------------------------------------
def _table(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *([str(cell) for cell in row] for row in rows)]
    return "\n".join(
        "| " + " | ".join(c.replace("|", "\\|") for c in line) + " |" for line in lines
    )


def _threads(n: int | None) -> str:
    if n is None:
        return ""
    return f"{n} thread" + "s" * (n != 1)


def _ratio(spread: Mapping[str, float]) -> str:
    return f"{spread['median']:.2f}× [{spread['q1']:.2f}–{spread['q3']:.2f}]"


def _time(seconds: float) -> str:
    for unit, scale in (("s", 1), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9)):
        number = float(f"{seconds / scale:.3g}")  # 999.6 µs is 1 ms
        if number >= 1 or unit == "ns":
            break
    return f"{number:g} {unit}"


def _peak(found: Mapping[str, Any]) -> str:
    """Of a call in the loop, and of the first one if what it keeps makes it larger."""
    steady, first = found["steady_bytes"], found["first_bytes"]
    if steady is None:
        return "not measured here"
    more = f" (first call {_bytes(first)})" if first > 1.1 * steady else ""
    return _bytes(steady) + more


def _bytes(n: int) -> str:
    return f"{n / 2**20:,.0f} MiB" if n >= 2**20 else f"{n / 2**10:,.0f} KiB"
