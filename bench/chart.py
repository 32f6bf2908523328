"""A document of `bench.run` as a picture: how many times as fast as the best peer each case is."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.report import rivals

__all__ = ["plot", "ratios"]


def ratios(document: Mapping[str, Any]) -> dict[str, list[float]]:
    """By the title of a case, best mean first: the ratios of its variants to their best peers, with
    the most threads that were measured."""
    found: dict[str, dict[int, list[float]]] = {}
    for entry in document["results"]:
        for best in rivals(document, entry)[:1]:
            case = found.setdefault(entry["title"], {})
            case.setdefault(entry["threads"] or 0, []).append(best["ratio"]["median"])
    most = {title: case[max(case)] for title, case in found.items()}
    return dict(sorted(most.items(), key=lambda item: -_mean(item[1])))


def _mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def plot(document: Mapping[str, Any], path: str | Path) -> None:
    """One line a case: a point for each variant, a bar at their geometric mean."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator

    cases = ratios(document)
    figure = Figure(figsize=(9, 1.2 + 0.27 * len(cases)), layout="constrained")
    axes = figure.subplots()
    for y, values in enumerate(cases.values()):
        mean = _mean(values)
        colour = "C0" if mean >= 1 else "C3"
        axes.plot(values, [y] * len(values), "o", color=colour, alpha=0.35, markersize=4)
        axes.plot([mean], [y], "|", color=colour, markersize=14, markeredgewidth=2.5)
        where = {"transform": axes.get_yaxis_transform(), "va": "center", "fontsize": "small"}
        axes.text(1.01, y, f"{mean:.2f}×", **where)
    axes.axvline(1, color="grey", linewidth=1)
    axes.set(xscale="log", xlabel="time of the best peer / ours (right of 1 we are faster)")
    short = [re.sub(r" \(.*?\)|, float32", "", title) for title in cases]
    axes.set_yticks(range(len(cases)), short, fontsize="small")
    axes.xaxis.set_major_locator(LogLocator(10, (1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}×"))
    axes.xaxis.set_minor_locator(LogLocator(10, ()))
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)
    machine = document["machine"]
    names = {"torch": "PyTorch", "scipy": "SciPy", "jax": "JAX"}
    peers = [f"{names[k]} {v}" for k, v in machine["versions"].items() if k in names]
    about = (
        f"{machine['cpu']}, {machine['cores']} cores; {', '.join(peers)}; {document['date'][:10]}"
    )
    figure.suptitle(about, fontsize=10)
    figure.savefig(path, dpi=110)
