"""What a run is said to have given: lines, a JSON record, a picture."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import math
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import sparsegrad as sg
from sparsegrad.recipes import TrainingResult

__all__ = [
    "check_picture",
    "draw",
    "dumps",
    "head",
    "line",
    "metrics",
    "record",
    "summary",
    "versions",
    "write",
]

# Metrics that are shares of 1; they are printed in percent.
_SHARES = ("accuracy", "recall", "ndcg", "precision", "auc", "density")


# ---- lines -------------------------------------------------------------------------------------
def metrics(row: Mapping[str, float]) -> str:
    """A row of a history: "loss 0.512, val_accuracy 71.0 %"."""
    return ", ".join(f"{k} {number(k, v)}" for k, v in row.items() if k != "epoch")


def line(title: str, step: str, result: TrainingResult) -> str:
    """One run."""
    chosen = f"; {step} {result.best['epoch']} was best" if result.best else ""
    validation = {k: v for k, v in result.best.items() if k.startswith("val_")}
    if validation:
        chosen += f": {metrics(validation)}"
    return f"{title}: test {metrics(result.test)}{chosen}"


def summary(matrix: str, step: str, runs: Sequence[TrainingResult]) -> str:
    """The line that a newcomer reads."""
    found = ", ".join(f"{k} {_over(k, [run.test[k] for run in runs])}" for k in runs[0].test)
    if len(runs) > 1:
        found += f" (mean of {len(runs)} runs)"
    seconds = statistics.median(run.seconds_per_epoch for run in runs)
    sparse, dense = runs[0].stored_bytes, runs[0].dense_bytes
    return (
        f"Test {found}; {_seconds(seconds)} per {step}; stored sparse, {matrix} takes "
        f"{_bytes(sparse)} of memory, as a dense matrix it would take {_bytes(dense)} "
        f"({number('accuracy', 1 - sparse / dense)} saved)."
    )


def number(name: str, value: float) -> str:
    """A metric as text, by its name."""
    if name.removeprefix("val_").partition("@")[0] in _SHARES:
        return f"{100 * value:.1f} %"
    return f"{value:.4g}"


def _over(name: str, values: list[float]) -> str:
    """Mean and deviation of several runs."""
    if len(values) == 1:
        return number(name, values[0])
    mean, deviation = mean_and_deviation(values)
    if number(name, mean).endswith("%"):
        return f"{100 * mean:.2f} ± {100 * deviation:.2f} %"
    return f"{mean:.5g} ± {deviation:.2g}"


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """Of a sample; the deviation of one value is 0."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def _seconds(s: float) -> str:
    return f"{1000 * s:.1f} ms" if s < 1 else f"{s:.2f} s"


def _bytes(n: float) -> str:
    for unit in ("B", "kB", "MB"):
        if n < 1000:
            return f"{n:.3g} {unit}"
        n /= 1000
    return f"{n:.3g} GB"


# ---- JSON --------------------------------------------------------------------------------------
def head(name: str, data: str, settings: dict[str, Any], device: str) -> dict[str, Any]:
    """What is known of a run before it starts."""
    return {
        "recipe": name,
        "data": data,
        "settings": settings,
        "device": device,
        "machine": {"cpu": platform.machine(), "cores": os.cpu_count()},
        "versions": {"python": platform.python_version(), **versions()},
    }


def record(head: dict[str, Any], results: dict[int, TrainingResult]) -> dict[str, Any]:
    """What --json writes: the head, and one entry a run. No times: `bench` measures."""
    runs = list(results.values())
    test = {}
    for name in runs[0].test:
        mean, deviation = mean_and_deviation([run.test[name] for run in runs])
        test[name] = {"mean": mean, "deviation": deviation, "runs": len(runs)}
    return {
        **head,
        "test": test,
        "stored_bytes": runs[0].stored_bytes,
        "dense_bytes": runs[0].dense_bytes,
        "runs": [
            {
                "seed": seed,
                "test": run.test,
                "best": run.best,
                "epochs": len(run.history),
            }
            for seed, run in results.items()
        ],
    }


def write(path: Path, content: dict[str, Any]) -> None:
    """As a whole or not at all: a file that is there before is replaced at the end."""
    part = path.with_name(path.name + ".part")
    part.write_text(dumps(content, indent=1) + "\n", encoding="utf-8")
    part.replace(path)


def dumps(content: Any, indent: int | None = None) -> str:
    """JSON, with null for nan and infinity, which it has no words for."""
    return json.dumps(_finite(content), indent=indent, allow_nan=False)


def _finite(x: Any) -> Any:
    if isinstance(x, Mapping):
        return {k: _finite(v) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        return [_finite(v) for v in x]
    return None if isinstance(x, float) and not math.isfinite(x) else x


def versions() -> dict[str, str]:
    """Of the libraries that a result may depend on."""
    found = {"sparsegrad": sg.__version__}
    for name in ("numpy", "scipy", "numba"):
        if importlib.util.find_spec(name) is not None:
            found[name] = importlib.metadata.version(name)
    return found


# ---- the picture -------------------------------------------------------------------------------
def check_picture(path: Path) -> None:
    """Say before the training what `draw` would fail at: no matplotlib, or no such format."""
    known = _figure()().canvas.get_supported_filetypes()
    kind = path.suffix[1:].lower()
    if kind and kind not in known:
        raise ValueError(
            f"--plot: {path}: no format {kind!r}; there are {', '.join(sorted(known))}"
        )


def _figure() -> Any:
    """matplotlib's figures, without a window; ImportError that says what to install."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError(
            "--plot needs matplotlib; pip install 'sparsegrad-engine[plot]'"
        ) from None
    return Figure


def draw(path: Path, title: str, results: dict[int, TrainingResult]) -> None:
    """Losses on the left, the other metrics on the right; a run is a line, its epoch a dot."""
    names = [k for k in _names(results) if k != "epoch"]
    panels = [[k for k in names if "loss" in k], [k for k in names if "loss" not in k]]
    panels = [panel for panel in panels if panel]
    figure = _figure()(figsize=(5 * max(1, len(panels)), 3.6), layout="constrained")
    figure.suptitle(title)
    for place, panel in enumerate(panels, 1):
        axes = figure.add_subplot(1, len(panels), place)
        for colour, name in enumerate(panel):
            for i, run in enumerate(results.values()):
                rows = [row for row in run.history if name in row]
                epochs, values = [r["epoch"] for r in rows], [r[name] for r in rows]
                style = {"color": f"C{colour}", "alpha": max(0.25, 1 / len(results) ** 0.5)}
                axes.plot(epochs, values, label=None if i else name, **style)
                if name in run.best and name.startswith("val_"):
                    axes.plot(run.best["epoch"], run.best[name], "o", markersize=5, **style)
        axes.set_xlabel("epoch")
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


def _names(results: dict[int, TrainingResult]) -> list[str]:
    rows = [row for run in results.values() for row in run.history]
    return list(dict.fromkeys(name for row in rows for name in row))
