"""Runs cases: check, time, probe; the result is plain data for `bench.report`."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from bench import bandwidth, machine, probe
from bench.cases import Candidate, Case, Variant
from bench.oracle import Expected, WrongResult, check
from bench.peers import PEERS, quiet
from bench.timer import AGAIN, Effort, Timer, paired

__all__ = ["SCHEMA", "run", "run_variant"]

SCHEMA = 1
Say = Callable[[str], None]


def run(
    cases: Sequence[Case],
    *,
    size: str,
    threads: Sequence[int],
    effort: Effort,
    command: str = "",
    memory: bool = True,
    bandwidths: bool = False,
    say: Say = lambda text: None,
) -> dict[str, Any]:
    """The whole document: who measured what on which machine, and one entry per variant."""
    missing = {p.name: p.missing() for p in PEERS.values()}
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "command": command,
        "commit": machine.commit(),
        "date": _now(),
        "size": size,
        "effort": vars(effort),
        "machine": machine.fingerprint(),
        "memory_method": probe.METHOD,
        "load_before": _load(),
        "bandwidth": {str(n): bandwidth.measure(n) for n in threads if bandwidths},
        "peers": [
            {"name": p.name, "title": p.title, "missing": missing[p.name]} for p in PEERS.values()
        ],
        "results": [],
    }
    for case in cases:
        budget = min(effort.budget_s, getattr(case, "budget_s", effort.budget_s))
        timer = Timer(replace(effort, budget_s=budget))
        counts: Sequence[int | None] = threads if case.threaded else [None]
        for variant in case.variants(size):
            expected = case.expected(variant)
            for count in counts:
                note = "" if count is None else f", threads {count}"
                say(f"{case.name}: {variant['label']}{note}")
                with _threads(count, missing["torch"] is None) as said:
                    others = machine.Others()
                    entry = run_variant(case, variant, expected, timer, missing)
                    entry["others"] = others.cores()
                entry["threads"], entry["threads_set"] = count, said
                if (traffic := getattr(case, "traffic", None)) is not None:
                    entry["traffic_bytes"] = traffic(variant)
                if memory and case.memory and count == max(threads):
                    _probe(case, variant, entry, count, size, say)
                document["results"].append(entry)
    document["load_after"] = _load()
    document["finished"] = _now()
    return document


def _threads(count: int | None, torch: bool) -> Any:
    return nullcontext({}) if count is None else machine.set_threads(count, torch)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _load() -> list[float] | None:
    return [round(x, 2) for x in os.getloadavg()] if hasattr(os, "getloadavg") else None


def run_variant(
    case: Case,
    variant: Variant,
    expected: Mapping[str, Expected],
    timer: Timer,
    missing: Mapping[str, str | None],
) -> dict[str, Any]:
    """Check every candidate of a variant, then time those that are right."""
    rows: dict[str, dict[str, Any]] = {}
    fns: dict[str, Callable[[], Any]] = {}
    for candidate in case.candidates(variant):
        row = rows[candidate.name] = {"name": candidate.name, "role": candidate.role}
        reason = candidate.needs and missing.get(candidate.needs)
        if reason or candidate.skip:
            row["status"], row["reason"] = "left out", reason or candidate.skip
            continue
        fn = _checked(candidate, expected, timer, row)
        if fn is not None:
            fns[candidate.name] = fn
    ours = next((name for name in fns if rows[name]["role"] == "ours"), None)
    with quiet():
        samples = timer.rounds(fns)
    for name in fns:
        row, found = rows[name], samples[name]
        row |= {"seconds": found.spread.as_dict(), "rounds": len(found.seconds)}
        row["inner"] = found.inner
        if case.memory:
            with quiet():
                row["page_faults"] = machine.page_faults(fns[name])
        if ours and name != ours:
            row["ratio"] = paired(samples[ours], found).as_dict()
    entry: dict[str, Any] = {
        "case": case.name,
        "title": case.title,
        "variant": dict(variant),
        "per": case.per,
        "candidates": list(rows.values()),
        "best_peer": None,
    }
    if ours:
        entry["noise"] = paired(samples[ours], samples[AGAIN]).as_dict()
        peers = [n for n in fns if rows[n]["role"] == "peer"]
        if peers:
            entry["best_peer"] = min(peers, key=lambda n: rows[n]["seconds"]["median"])
    return entry


def _checked(
    candidate: Candidate, expected: Mapping[str, Expected], timer: Timer, row: dict[str, Any]
) -> Callable[[], Any] | None:
    """The function to time, if its first call gives what it should."""
    try:
        with quiet():
            fn = candidate.make()
            row["first_s"], raw = timer.once(fn)
            row["error"] = check(candidate.result(raw), expected)
    except WrongResult as wrong:
        row["status"], row["reason"] = "wrong", str(wrong)
        return None
    except Exception as error:  # a peer that cannot do this is a row of the table, not the end
        reason = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        row["status"], row["reason"] = "failed", reason[:200]
        return None
    row["status"] = "timed"
    return fn


def _probe(
    case: Case, variant: Variant, entry: dict[str, Any], threads: int, size: str, say: Say
) -> None:
    small = case.variants("tiny" if size == "tiny" else "quick")[0]
    for row in entry["candidates"]:
        if row["status"] == "timed":
            say(f"  memory: {row['name']}")
            row["memory"] = probe.measure(case.name, variant, row["name"], small, threads)
