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


def main() -> None:
    """Train once and write what it gave."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=_default("epochs"))
    parser.add_argument("--out", type=Path, default=RESULTS / "lightgcn-gowalla.json")
    options = parser.parse_args()
    gowalla = data.gowalla()
    curve: list[dict[str, float]] = []
    wall, cpu = time.perf_counter(), time.process_time()

    def minutes() -> dict[str, float]:
        return {
            "minutes": round((time.perf_counter() - wall) / 60, 3),
            "cpu_minutes": round((time.process_time() - cpu) / 60, 3),
        }

    def note(row: dict[str, float]) -> None:
        curve.append({**row, **minutes()})
        print(curve[-1], flush=True)

    result = train_lightgcn(gowalla, seed=options.seed, epochs=options.epochs, on_epoch=note)
    parameters = inspect.signature(train_lightgcn).parameters.values()
    settings = {p.name: p.default for p in parameters if p.default is not p.empty}
    record = {
        "command": f"python -m bench.recommend --seed {options.seed} --epochs {options.epochs}",
        "commit": machine.commit(),
        "machine": machine.fingerprint(),
        "settings": {**settings, "seed": options.seed, "epochs": options.epochs},
        "test": result.test,
        "published": PUBLISHED,
        "chosen": result.best,
        "total": minutes(),
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
