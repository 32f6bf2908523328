"""The training loop: early stopping, history, and checkpoints of runs that are killed."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import sparsegrad as sg
from sparsegrad.recipes import EarlyStopping, fit, train_gcn

pytest.importorskip("safetensors", reason="checkpoints need the extra `io`")

ROOT = Path(__file__).resolve().parent.parent


# ---- when to stop, what to keep ----------------------------------------------------------------
def judged(stopping, rows):
    """Which rows are kept, until patience runs out."""
    kept = []
    for row in rows:
        kept.append(stopping.update(row))
        if stopping.done:
            break
    return kept


def test_the_first_metric_decides_and_the_next_breaks_ties():
    rows = [{"a": a, "b": b} for a, b in ((1, 5), (1, 4), (0, 1), (1, 4), (2, 9), (2, 9), (2, 9))]
    stopping = EarlyStopping("max a", "min b", patience=2)
    assert judged(stopping, rows) == [True, True, False, False]
    assert judged(EarlyStopping("max a", "min b"), rows) == [1, 1, 0, 0, 1, 0, 0]


def test_each_metric_resets_patience_and_all_keep():
    rows = [{"a": a, "b": b} for a, b in ((1, 5), (2, 6), (0, 5), (2, 4), (1, 5), (1, 5), (1, 5))]
    stopping = EarlyStopping("max a", "min b", patience=2, each=True)
    assert judged(stopping, rows) == [True, False, False, True, False, False]


def test_nan_never_improves():
    nan = float("nan")
    rows = [{"a": nan}, {"a": 1.0}, {"a": nan}, {"a": nan}]
    assert judged(EarlyStopping("min a", patience=2), rows) == [True, True, False, False]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: EarlyStopping(), "no metric"),
        (lambda: EarlyStopping("loss"), "expected 'max NAME' or 'min NAME', got 'loss'"),
        (lambda: EarlyStopping("min loss", patience=0), "patience must be at least 1, got 0"),
        (lambda: EarlyStopping("min loss").update({"a": 1.0}), "has no 'loss', only a"),
    ],
)
def test_stopping_errors(make, text):
    with pytest.raises(ValueError, match=text):
        make()


# ---- the loop ----------------------------------------------------------------------------------
class Slope:
    """One weight that walks 1 an epoch; best at 3."""

    def __init__(self):
        self.model = sg.nn.Linear(1, 1, bias=False)
        self.model.weight.data[...] = 0
        self.optimizer = sg.optim.SGD(self.model.parameters(), lr=1.0)

    def update(self):
        self.optimizer.zero_grad()
        (-self.model.weight).sum().backward()
        self.optimizer.step()
        return {"loss": -self.model.weight.item()}

    def validate(self):
        return {"val_loss": abs(self.model.weight.item() - 3)}

    def fit(self, epochs=20, patience=None, **options):
        stopping = EarlyStopping("min val_loss", patience=patience)
        return fit(
            self.model, self.optimizer, self.update, self.validate,
            epochs=epochs, stopping=stopping, **options,
        )  # fmt: skip


def test_the_best_weights_are_kept():
    slope, rows = Slope(), []
    found = slope.fit(patience=2, on_epoch=rows.append)
    assert found.history == rows and [r["epoch"] for r in rows] == [1, 2, 3, 4, 5]
    assert found.best == {"epoch": 3, "loss": -3.0, "val_loss": 0.0}
    assert slope.model.weight.item() == 3.0


def test_validation_every_few_epochs_and_at_the_end():
    found = Slope().fit(epochs=7, validate_every=2)
    assert [r["epoch"] for r in found.history if "val_loss" in r] == [2, 4, 6, 7]
    assert found.best["epoch"] == 2


@pytest.mark.parametrize("name", ["epochs", "validate_every"])
def test_fit_errors(name):
    with pytest.raises(ValueError, match=f"fit: {name} must be at least 1, got 0"):
        Slope().fit(**{name: 0})


# ---- checkpoints -------------------------------------------------------------------------------
def test_a_finished_run_is_not_trained_again(tmp_path):
    file = tmp_path / "new" / "run.safetensors"
    first, rows = Slope().fit(epochs=4, checkpoint=file), []
    again = Slope()
    found = again.fit(epochs=4, checkpoint=file, resume=True, on_epoch=rows.append)
    assert rows == found.history == first.history and again.model.weight.item() == 3.0
    more = Slope().fit(epochs=6, checkpoint=file, resume=True)
    assert more.history == Slope().fit(epochs=6).history


def test_a_checkpoint_is_not_overwritten_and_not_mistaken(tmp_path):
    file = tmp_path / "run.safetensors"
    Slope().fit(epochs=2, checkpoint=file, settings={"lr": 1.0})
    with pytest.raises(FileExistsError, match="resume from it"):
        Slope().fit(epochs=2, checkpoint=file)
    with pytest.raises(ValueError, match=r"of a run with lr = 1\.0, this one has 0\.5"):
        Slope().fit(epochs=2, checkpoint=file, resume=True, settings={"lr": 0.5})
    with pytest.raises(ValueError, match="is a folder"):
        Slope().fit(epochs=2, checkpoint=tmp_path)
    sg.save({"w": sg.ones(1)}, file)
    with pytest.raises(ValueError, match="not a checkpoint"):
        Slope().fit(epochs=2, checkpoint=file, resume=True)


def test_checkpoints_are_as_far_apart_as_asked(tmp_path):
    file = tmp_path / "run.safetensors"
    seen = []
    Slope().fit(epochs=3, checkpoint=file, on_epoch=lambda row: seen.append(file.exists()))
    assert seen == [False] * 3 and file.exists()
    seen.clear()
    Slope().fit(
        epochs=3, checkpoint=tmp_path / "b", save_every=0,
        on_epoch=lambda row: seen.append((tmp_path / "b").exists()),
    )  # fmt: skip
    assert seen == [False, True, True]


class Sparse:
    """A sparse layer that loses an entry an epoch, Adam, a schedule, dropout."""

    def __init__(self):
        sg.manual_seed(1)
        A = sg.random_sparse(6, 6, 0.5)
        self.model = sg.nn.Sequential(sg.nn.SparseLinear(6, 6, pattern=A.pattern), sg.nn.Dropout())
        self.weight = self.model[0].weight
        self.optimizer = sg.optim.Adam(self.model.parameters(), lr=0.1)
        self.schedule = sg.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.5)

    def update(self):
        self.optimizer.zero_grad()
        loss = ((self.model(sg.ones(4, 6)) - 1) ** 2).mean()
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        smaller = sg.top_k(self.weight.detach().abs(), self.weight.nnz - 1)
        self.optimizer.repattern_(self.weight, smaller.pattern)
        return {"loss": loss.item()}

    def fit(self, **options):
        return fit(
            self.model, self.optimizer, self.update, dict, keep={"schedule": self.schedule},
            stopping=EarlyStopping("min loss"), **options,
        )  # fmt: skip


class Interruption(Exception):
    pass


@pytest.mark.parametrize("at", [1, 3, 4])
def test_patterns_schedules_and_dropout_go_on(tmp_path, at):
    """What a killed run leaves, with the checkpoint of the epoch before."""

    def stop(row):
        if row["epoch"] == at:
            raise Interruption

    whole = Sparse()
    expected = whole.fit(epochs=6)
    file = tmp_path / "run.safetensors"
    with pytest.raises(Interruption):
        Sparse().fit(epochs=6, checkpoint=file, save_every=0, on_epoch=stop)
    resumed = Sparse()
    sg.manual_seed(9)
    if at == 1:  # killed before the first checkpoint: from the beginning
        assert not file.exists()
        resumed = Sparse()
    found = resumed.fit(epochs=6, checkpoint=file, save_every=0, resume=True)
    assert found.history == expected.history and found.best == expected.best
    assert resumed.weight.pattern.same_as(whole.weight.pattern)
    for ours, theirs in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        ours, theirs = (getattr(p, "values", p) for p in (ours, theirs))
        np.testing.assert_array_equal(ours.data, theirs.data)


RUN = """
import json, sys
import sparsegrad as sg
from sparsegrad.recipes import train_gcn
graph = sg.data.sbm(n=400, n_features=200, seed=0)
def on_epoch(row):
    print(row["epoch"], flush=True)
found = train_gcn(graph, epochs=40, checkpoint=sys.argv[1], resume=True, save_every=0, seed=5,
                  on_epoch=on_epoch)
sg.save({**found.model.state_dict()}, sys.argv[2])
json.dump([found.history, found.best, found.test], open(sys.argv[3], "w"))
"""


def test_killed_at_any_moment_and_resumed_it_ends_the_same(tmp_path):
    graph = sg.data.sbm(n=400, n_features=200, seed=0)
    whole = train_gcn(graph, epochs=40, seed=5)
    sg.save(whole.model.state_dict(), tmp_path / "whole.safetensors")
    files = [tmp_path / name for name in ("run", "weights", "result")]
    command = [sys.executable, "-c", RUN, *map(str, files)]
    moments = random.Random(time.time_ns())
    reached = [0]
    for _ in range(5):
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            # The rows it had already come at once; then some epochs, then part of one.
            for line in process.stdout:
                if int(line) >= reached[-1] + moments.randint(1, 8):
                    reached.append(int(line))
                    break
            time.sleep(moments.uniform(0, 0.01))
            process.send_signal(signal.SIGKILL)
    assert reached[-1] > reached[1] > 0
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, timeout=120)
    history, best, test = json.loads(files[2].read_text())
    assert (history, best, test) == (whole.history, whole.best, whole.test)
    assert files[1].read_bytes() == (tmp_path / "whole.safetensors").read_bytes()
    names = {name for name in os.listdir(tmp_path) if name.startswith("run")}
    assert names == {"run"}
