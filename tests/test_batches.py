"""Sampled neighbours, negative samples, and mini-batches from worker processes."""

import collections
import gc
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import sparsegrad as sg
from sparsegrad.data import DataLoader

# --- samples of neighbours ----------------------------------------------------------------------


def weighted(n=60, degree=8):
    sg.manual_seed(0)
    return sg.random_sparse(n, n, degree / n, "csr", dtype=sg.float64)


@pytest.mark.parametrize("fanouts", [[3], [3, 2], [-1, 4], [0, 2], []])
def test_sampled_layers_hold_rows_of_the_graph(fanouts):
    A = weighted()
    nodes, layers = sg.data.NeighborSampler(A, fanouts).sample([7, 3, 50])
    assert nodes[:3].tolist() == [7, 3, 50] and len(set(nodes)) == len(nodes)
    assert nodes.dtype == np.int64 and len(layers) == len(fanouts)
    dense, width = A.to_dense().numpy(), len(nodes)
    for layer, fanout in zip(layers, fanouts[::-1], strict=True):  # that next to the batch is last
        m, n = layer.shape
        assert n == width and layer.format == "csr" and layer.is_coalesced
        rows, seen = dense[np.ix_(nodes[:m], nodes[:n])], layer.to_dense().numpy()
        np.testing.assert_array_equal(seen, np.where(seen, rows, 0))
        degree = (dense[nodes[:m]] != 0).sum(1)
        wanted = degree if fanout < 0 else np.minimum(degree, fanout)
        np.testing.assert_array_equal((seen != 0).sum(1), wanted)
        assert set(range(m, n)) <= set(layer.indices.tolist())  # nothing that nobody reads
        width = m
    assert width == 3


def test_all_neighbours_give_the_outputs_of_the_whole_graph():
    A, layers = weighted(), [sg.nn.SAGEConv(4, 4, dtype=sg.float64) for _ in range(2)]
    x = sg.randn(60, 4, dtype=sg.float64)
    whole = layers[1](layers[0](x, A), A).detach().numpy()
    for nodes, parts in DataLoader(sg.data.NeighborSampler(A, [-1, -1], np.arange(5, 30)), 10):
        h = x[nodes]
        for layer, part in zip(layers, parts, strict=True):
            h = layer(h, part)
        np.testing.assert_allclose(h.detach(), whole[nodes[: len(h)]], rtol=1e-12)


def test_sampled_neighbours_are_drawn_evenly_and_anew():
    A = sg.csr([0, 6, *[6] * 6], [1, 2, 3, 4, 5, 6], None, (7, 7))
    sampler = sg.data.NeighborSampler(A, [2], nodes=np.arange(7) == 0)
    assert len(sampler) == 1
    drawn = np.concatenate([sampler.batch([0])[0][1:] for _ in range(3000)])
    np.testing.assert_allclose(np.bincount(drawn, minlength=7)[1:] / 3000, 1 / 3, atol=0.04)
    loaders = [DataLoader(sampler, seed=3) for _ in range(2)]
    first, second = ([[nodes.tolist() for nodes, _ in each] for _ in range(8)] for each in loaders)
    assert first == second and len({str(epoch) for epoch in first}) > 1


def test_neighbor_sampler_errors():
    A = weighted(5, 2)
    for made, error, text in (
        (lambda: sg.data.NeighborSampler(A.to_dense(), [2]), TypeError, "A must be a SparseTensor"),
        (lambda: sg.data.NeighborSampler(A[:3], [2]), ValueError, r"must be \(n, n\), got shape"),
        (lambda: sg.data.NeighborSampler(A, [-2]), ValueError, r"integers >= -1, got \[-2\]"),
        (lambda: sg.data.NeighborSampler(A, [2], [4, 5]), ValueError, r"\[0, 5\), got 4 to 5"),
        (lambda: sg.data.NeighborSampler(A, [2], [1.0]), sg.DtypeError, "integers .*got float64"),
        (lambda: sg.data.NeighborSampler(A, [2]).sample([3, 1, 3]), ValueError, "3 is given twice"),
    ):
        with pytest.raises(error, match=f"NeighborSampler: .*{text}"):
            made()


# --- negative samples --------------------------------------------------------------------------


@pytest.mark.parametrize("power", [0.0, 0.75, 1.0])
def test_negatives_are_never_positives(power):
    sg.manual_seed(0)
    R = sg.random_sparse(50, 8, 0.6, "csr")
    rows = np.flatnonzero(np.diff(R.indptr) < 8)
    drawn = sg.data.NegativeSampler(R, power).draw(rows, 40).numpy()
    dense = R.to_dense().numpy() != 0
    assert not dense[rows[:, None], drawn].any()
    # All that is left is drawn, unless it has no weight.
    for i, row in enumerate(rows):
        assert set(drawn[i]) <= set(np.flatnonzero(~dense[row]))


def test_negatives_follow_popularity():
    sg.manual_seed(0)
    R = sg.coo([np.r_[np.arange(60), np.arange(30)], np.r_[[1] * 60, [2] * 30]], None, (100, 4))
    drawn = sg.data.NegativeSampler(R, power=1.0).draw(np.arange(60, 100), 2000).numpy()
    share = np.bincount(drawn.ravel(), minlength=4) / drawn.size
    np.testing.assert_allclose(share, [0, 2 / 3, 1 / 3, 0], atol=0.01)
    uniform = sg.data.NegativeSampler(R).draw([0, 70], 4000).numpy()
    np.testing.assert_allclose(np.bincount(uniform[0], minlength=4) / 4000, [0.5, 0, 0, 0.5],
                               atol=0.03)  # fmt: skip
    np.testing.assert_allclose(np.bincount(uniform[1]) / 4000, [0.25] * 4, atol=0.03)


def test_negatives_where_little_is_left():
    n = 2000
    cols = np.delete(np.arange(n), 1234)
    R = sg.coo([np.zeros(n - 1, int), cols], None, (2, n))
    for power in (0.0, 1.0):
        assert set(sg.data.NegativeSampler(R, power).draw([0], 5).numpy().ravel()) == {1234}
    full = sg.coo([np.zeros(3, int), [0, 1, 2]], None, (1, 3))
    with pytest.raises(ValueError, match="row 0 has an entry in every column"):
        sg.data.NegativeSampler(full).draw([0])
    with pytest.raises(ValueError, match=r"rows must lie in \[0, 2\)"):
        sg.data.NegativeSampler(R).draw([2])
    with pytest.raises(ValueError, match="power"):
        sg.data.NegativeSampler(R, -1)


def test_negatives_repeat_with_the_seed():
    R = sg.random_sparse(20, 30, 0.2, "csr")
    sampler = sg.data.NegativeSampler(R)
    draws = []
    for seed in (1, 1, 2):
        sg.manual_seed(seed)
        draws.append(sampler.draw(np.arange(20), 3).numpy())
    assert (draws[0] == draws[1]).all() and (draws[0] != draws[2]).any()


# --- mini-batches ------------------------------------------------------------------------------


class Drawing:
    """Samples that draw from all three generators, dense, sparse and plain."""

    def __len__(self):
        return 11

    def __getitem__(self, i):
        noise = (sg.rand(1).item(), float(np.random.rand()), random.random())  # noqa: NPY002
        return {"i": i, "noise": np.array(noise), "A": sg.sparse_eye(3, format="csr") * i}


class Broken(Drawing):
    def __init__(self, how):
        self.how = how

    def __getitem__(self, i):
        if i == 5:
            if self.how == "raises":
                raise KeyError("no sample 5 here")
            if self.how == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            return lambda: i  # cannot be pickled
        return i


def plain(epoch):
    return [
        (batch["i"].tolist(), batch["noise"].tolist(), batch["A"].to_dense().tolist())
        for batch in epoch
    ]


@pytest.mark.parametrize("shuffle", [False, True])
def test_batches_are_the_same_for_any_number_of_workers(shuffle):
    found = []
    for workers in (0, 1, 2):
        loader = DataLoader(Drawing(), 4, shuffle, num_workers=workers, seed=3)
        found.append([plain(loader), plain(loader)])
        loader.close()
    assert found[0] == found[1] == found[2]
    first, second = ([i for batch in epoch for i in batch[0]] for epoch in found[0])
    assert sorted(first) == sorted(second) == list(range(11))
    assert (first == second) is not shuffle
    assert found[0][0][0][1] != found[0][1][0][1]  # another epoch draws anew


def test_batches_leave_the_generators_alone():
    sg.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    random.seed(0)
    loader = DataLoader(Drawing(), 4, seed=1)
    draw = (sg.rand(1).item(), np.random.rand(), random.random())  # noqa: NPY002
    sg.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    random.seed(0)
    plain(loader)
    assert draw == (sg.rand(1).item(), np.random.rand(), random.random())  # noqa: NPY002


def test_the_seed_comes_from_manual_seed():
    orders = []
    for seed in (1, 1, 2):
        sg.manual_seed(seed)
        orders.append([x.item() for x in DataLoader(list(range(50)), shuffle=True)])
    assert orders[0] == orders[1] != orders[2]


def test_a_loader_goes_on_where_its_state_was_taken():
    loader = DataLoader(list(range(50)), 50, shuffle=True, seed=0)
    epochs = [next(iter(loader)).tolist() for _ in range(3)]
    other = DataLoader(list(range(50)), 50, shuffle=True, seed=0)
    other.load_state_dict({"epoch": 2})
    assert next(iter(other)).tolist() == epochs[2] and other.state_dict() == {"epoch": 3}


def test_whole_batches_are_taken_at_once():
    X = sg.random_sparse(10, 6, 0.3, "csr")
    loader = DataLoader(sg.data.TensorDataset(X, sg.arange(10)), 4, drop_last=True)
    assert len(loader) == 2
    for x, ids in loader:
        assert x.format == "csr"
        np.testing.assert_array_equal(x.to_dense().numpy(), X.to_dense().numpy()[ids.numpy()])
    with pytest.raises(ValueError, match=r"different numbers of rows: \[10, 3\]"):
        sg.data.TensorDataset(X, sg.arange(3))


class Listed(list):
    def __getitems__(self, ids):
        return [self[i] + 0.5 for i in ids]


def test_a_dataset_that_gives_lists_of_samples():
    assert [b.tolist() for b in DataLoader(Listed([1, 2, 3]), 2)] == [[1.5, 2.5], [3.5]]


def test_collate():
    Pair = collections.namedtuple("Pair", "x y")
    batch = sg.data.default_collate([Pair(np.ones(2, "f4"), "a"), Pair(np.zeros(2, "f4"), "b")])
    assert isinstance(batch, Pair) and batch.y == ["a", "b"] and batch.x.dtype == sg.float32
    assert sg.data.default_collate([True, False]).dtype == np.bool_
    A = sg.data.default_collate([sg.sparse_eye(2), sg.sparse_eye(2, format="csr") * 3])
    assert A.format == "coo" and A.to_dense().tolist() == [[[1, 0], [0, 1]], [[3, 0], [0, 3]]]
    with pytest.raises(TypeError, match="cannot make a batch of object"):
        sg.data.default_collate([object()])
    with pytest.raises(sg.ShapeError, match="shapes differ"):
        sg.data.default_collate([np.ones(2), np.ones(3)])


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("raises", "batch 1 failed in worker 1:\n(?s:.*)test_batches(?s:.*)no sample 5 here"),
        ("dies", r"worker 1 died \(exit code -9\) before batch 1"),
        ("cannot be pickled", "batch 1 failed in worker 1:\n(?s:.*)[pP]ickle"),
    ],
)
def test_what_goes_wrong_in_a_worker_is_said(how, text):
    collate = None if how != "cannot be pickled" else list
    loader = DataLoader(Broken(how), 4, num_workers=2, collate_fn=collate)
    with pytest.raises(sg.data.WorkerError, match=text):
        list(loader)
    assert not multiprocessing.active_children()


def test_errors_in_this_process_are_what_they_are():
    with pytest.raises(KeyError, match="no sample 5"):
        list(DataLoader(Broken("raises"), 4))


def test_epochs_that_are_broken_off_and_clean_shutdown():
    loader = DataLoader(Drawing(), 2, num_workers=2, seed=0)
    for batch in loader:
        assert batch["i"].tolist() == [0, 1]
        break
    assert [b["i"].tolist() for b in loader][-1] == [10]
    started = multiprocessing.active_children()
    assert len(started) == 2  # the same ones
    held = iter(loader)
    next(held)
    with pytest.raises(RuntimeError, match="another iteration is under way"):
        next(iter(loader))
    held.close()
    del loader, held, batch
    gc.collect()
    assert not multiprocessing.active_children()


def test_loader_errors():
    for options, text in (
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"num_workers": -1}, "num_workers must be at least 0"),
        ({"prefetch_factor": 0}, "prefetch_factor must be at least 1"),
    ):
        with pytest.raises(ValueError, match=text):
            DataLoader([1], **options)
    assert list(DataLoader([])) == [] and len(DataLoader([1], 2, drop_last=True)) == 0


SCRIPT = """
import os, sys
import sparsegrad as sg
from sparsegrad.data import DataLoader

def main():
    loader = DataLoader(list(range(100)), 1, num_workers=2)
    epoch = iter(loader)
    next(epoch)
    print(*(p.pid for p in loader._workers.processes), flush=True)
    os._exit(1) if sys.argv[1] == "exit" else sys.exit(3)

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("how", ["return", "exit"])
def test_workers_end_with_their_parent(how, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    ran = subprocess.run(
        [sys.executable, script, how], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == (1 if how == "exit" else 3), ran.stderr
    pids = [int(pid) for pid in ran.stdout.split()]
    assert len(pids) == 2
    deadline = time.monotonic() + 20
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_script_without_a_guard_is_told(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace('if __name__ == "__main__":\n    main()', "main()"))
    ran = subprocess.run(
        [sys.executable, script, "return"], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 1 and 'the guard `if __name__ == "__main__":`' in ran.stderr
