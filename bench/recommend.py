"""LightGCN on Gowalla: quality against time, `python -m bench.recommend` (two cores, an hour).

Writes results/lightgcn-gowalla.json and .png. The environment variable SPARSEGRAD_DATA names the
folder that holds rec/gowalla.npz. Epochs are chosen on a share of the training data, the test is
read once. On a machine that is shared the processor time says more than the clock: it is what the
run would take alone on the cores it used.
"""

from __future__ import annotations

import argparse
import inspect
import json
import time
from pathlib import Path
from typing import Any

from bench import machine
from sparsegrad import data
from sparsegrad.recipes import train_lightgcn

RESULTS = Path(__file__).resolve().parent / "results"
# He et al., SIGIR 2020, and its authors' PyTorch code: three layers, a thousand epochs.
PUBLISHED = {"recall@20": 0.1830, "ndcg@20": 0.1554}


class Clock:
    """Minutes since the start, at the end of each epoch; goes on in a run that is resumed."""

    def __init__(self) -> None:
        self.epochs: list[dict[str, float]] = []
        self._before = {"minutes": 0.0, "cpu_minutes": 0.0}
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def now(self) -> dict[str, float]:
        """Of all runs together."""
        since = {
            "minutes": (time.perf_counter() - self._wall) / 60,
            "cpu_minutes": (time.process_time() - self._cpu) / 60,
        }
        return {name: round(since[name] + self._before[name], 3) for name in since}

    def at(self, epoch: int) -> dict[str, float]:
        """When an epoch ended; the first time that it is asked for is when."""
        if epoch > len(self.epochs):
            self.epochs.append(self.now())
        return self.epochs[epoch - 1]

    def state_dict(self) -> dict[str, Any]:
        return {"epochs": [dict(row) for row in self.epochs]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epochs = [dict(row) for row in state["epochs"]]
        self._before = self.epochs[-1]


def main() -> None:
    """Train once and write what it gave."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=_default("epochs"))
    parser.add_argument("--out", type=Path, default=RESULTS / "lightgcn-gowalla.json")
    parser.add_argument("--checkpoint", type=Path, help="go on from there, if it exists")
    options = parser.parse_args()
    curve: list[dict[str, float]] = []
    clock = Clock()

    def note(row: dict[str, float]) -> None:
        curve.append({**row, **clock.at(int(row["epoch"]))})
        print(curve[-1], flush=True)

    loop: dict[str, Any] = {"on_epoch": note}
    if options.checkpoint is not None:
        loop |= {"checkpoint": options.checkpoint, "resume": True, "keep": {"clock": clock}}
    settings = {"seed": options.seed, "epochs": options.epochs}
    result = train_lightgcn(data.gowalla(), **settings, **loop)
    parameters = inspect.signature(train_lightgcn).parameters.values()
    defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
    record = {
        "command": f"python -m bench.recommend --seed {options.seed} --epochs {options.epochs}",
        "commit": machine.commit(),
        "machine": machine.fingerprint(),
        "settings": {**defaults, **settings},
        "test": result.test,
        "published": PUBLISHED,
        "chosen": result.best,
        "total": clock.now(),
        "curve": curve,
    }
    options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    draw(options.out.with_suffix(".png"), record)
    print(result.test, record["total"])


def _default(name: str) -> Any:
    return inspect.signature(train_lightgcn).parameters[name].default


def draw(path: Path, record: dict[str, Any]) -> None:
    """Validation metrics against processor time on two cores, and what the test gave."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.8), layout="constrained")
    axes = figure.add_subplot()
    time = [row["cpu_minutes"] / 2 for row in record["curve"]]
    for colour, name in enumerate(PUBLISHED):
        values = [row[f"val_{name}"] for row in record["curve"]]
        axes.plot(time, values, ".-", color=f"C{colour}", label=f"validation {name}")
        tested = {"color": f"C{colour}", "markersize": 12, "label": f"test {name}"}
        axes.plot(time[-1], record["test"][name], "*", **tested)
        axes.axhline(PUBLISHED[name], color=f"C{colour}", ls=":", label=f"published test {name}")
    axes.set(title="LightGCN on Gowalla", xlabel="minutes on two cores", ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize="small")
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
