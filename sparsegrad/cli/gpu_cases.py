"""What `sparsegrad check-gpu` runs: together, every op and every kernel of ours at least once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import sparsegrad as sg
from sparsegrad.cli.gpu_cases_dense import DENSE
from sparsegrad.cli.gpu_inputs import WIDE, Case, Inputs

__all__ = ["CASES"]


def _deterministic(t: Inputs) -> Any:
    with sg.config(deterministic=True):
        return t.matrix() @ t.leaf(400, 20)


def _unweighted(t: Inputs) -> Any:
    return t.ones() @ t.leaf(400, 20)


def _curved(t: Inputs) -> Any:
    """A gradient whose own gradients are compared."""
    x = t.leaf(400, 20)
    out = sg.spmm(t.matrix(), x, "max")
    return sg.grad((out**2).sum(), [x], create_graph=True)[0]


def _several(t: Inputs, op: Callable[..., Any]) -> Any:
    A = t.matrix()
    return op(A, t.matrix(400, 25))


def _again(t: Inputs) -> Any:
    A, ids = t.matrix(), t.ids(30, 9)
    return A[ids] + A[ids]


def _masked(t: Inputs) -> Any:
    return sg.spgemm_masked(t.matrix(), t.matrix(400, 25), t.ones(30, 25).pattern)


def _sampled(t: Inputs) -> Any:
    return sg.sddmm(t.leaf(30, 20), t.leaf(400, 20), t.ones().pattern)


def _added(t: Inputs) -> Any:
    return sg.sampled_addmm(t.matrix(), t.leaf(30, 20), t.leaf(20, 400), beta=0.5, alpha=2.0)


def _segments(op: Callable[..., Any]) -> Callable[[Inputs], Any]:
    return lambda t: op(t.leaf(1400, 3), np.array([0, 2, 2, 1390, 1400]))


def _scattered(t: Inputs) -> Any:
    index = np.repeat(t.ids(30, 300)[:, None], 6, 1)
    return sg.scatter_add(t.leaf(30, 6), 0, sg.tensor(index, device=t.device), t.leaf(300, 6))


def _tables(t: Inputs) -> Any:
    index = np.stack([t.ids(40, 300), t.ids(9, 300)], 1)
    return sg.embedding_collection([t.leaf(40, 8), t.leaf(9, 4)], index)


def _dense(t: Inputs) -> Any:
    x = sg.tanh(t.leaf(30, 20) @ t.leaf(20, 20)) * t.leaf(20)
    return sg.log_softmax(x, 1).mean(0) + sg.exp(x).sum(0)


def _loss(t: Inputs) -> Any:
    return sg.cross_entropy(t.leaf(50, 7), sg.tensor(t.ids(7, 50), device=t.device))


def _random(t: Inputs) -> Any:
    sg.manual_seed(7)
    placed: dict[str, Any] = {"dtype": t.dtype, "device": t.device}
    drawn = [sg.rand(500, **placed), sg.randn(500, **placed)]
    return sg.cat([*drawn, sg.randint(0, 100, (500,), device=t.device).to(t.dtype)])


def _dropout(t: Inputs) -> Any:
    sg.manual_seed(7)
    return sg.dropout(t.leaf(501), 0.4)


def _step(cls: Any, **options: Any) -> Callable[[Inputs], Any]:
    """Three steps of an optimizer with row-sparse gradients, and one with a dense one."""

    def run(t: Inputs) -> Any:
        table = t.leaf(40, 8)
        t.leaves.clear()
        optimizer = cls([table], lr=0.1, **options)
        for step in range(4):
            optimizer.zero_grad()
            found = sg.embedding(table, t.ids(12, 300)) if step < 3 else table
            (found**2).sum().backward()
            optimizer.step()
        return table.detach()

    return run


def _trained(t: Inputs) -> Any:
    """The weights after five steps of a two-layer graph network."""
    A = t.matrix(60, 60)
    A = sg.softmax(A.detach(), 1)
    x, first, second = t.leaf(60, 8).detach(), t.leaf(8, 16), t.leaf(16, 4)
    t.leaves.clear()
    target = sg.tensor(t.ids(4, 60), device=t.device)
    optimizer = sg.optim.Adam([first, second], lr=0.05)
    for _ in range(5):
        optimizer.zero_grad()
        sg.cross_entropy(A @ (sg.relu(A @ (x @ first)) @ second), target).backward()
        optimizer.step()
    return sg.cat([first.detach().reshape(-1), second.detach().reshape(-1)])


def _solved(solve: Callable[..., Any]) -> Callable[[Inputs], Any]:
    """By a solver, for a matrix that is far from singular."""

    def run(t: Inputs) -> Any:
        A = t.matrix(40, 40)
        symmetric = (A + A.T) * 0.05 + sg.sparse_eye(40, dtype=t.dtype, device=t.device) * 4
        return solve(symmetric, t.leaf(40, 3))

    return run


def _triangular(A: Any, b: Any) -> Any:
    return sg.triangular_solve(sg.tril(A), b)


def _rearranged(t: Inputs) -> Any:
    A, B = t.matrix(), t.matrix(fmt="coo")
    tall = sg.cat([A, B, sg.prune(A, 0.5)])
    return sg.reshape(tall.T, (900, 40)) * 2


def _from_arrays(t: Inputs) -> Any:
    """Made of arrays that lie on the device, where they are checked."""
    found = t.ones().pattern
    indptr, indices = (sg.tensor(ids, device=t.device) for ids in (found.indptr, found.indices))
    return sg.csr(indptr, indices, t.leaf(found.nnz), found.shape)


def _products(t: Inputs) -> Any:
    """Of numbers near 1, since one row is long."""
    return sg.prod(abs(t.matrix(30, 1500)) ** 0.001, 1, include_zeros=False)


def _graph(t: Inputs) -> Any:
    A = t.matrix(60, 60)
    return sg.gcn_norm(sg.symmetrize(A * A))


CASES = (
    Case("sparse @ dense", lambda t: t.matrix() @ t.leaf(400, 20)),
    Case("sparse @ dense, deterministic", _deterministic),
    Case("sparse @ vector", lambda t: t.matrix() @ t.leaf(400)),
    Case("sparse.T @ dense", lambda t: t.matrix().T @ t.leaf(30, 20)),
    Case("sparse @ dense, unweighted", _unweighted),
    Case("sparse @ dense, heads", lambda t: sg.spmm(t.matrix(heads=3), t.leaf(400, 3, 5))),
    Case("spmm, mean", lambda t: sg.spmm(t.matrix(), t.leaf(400, 20), "mean")),
    Case("spmm, max", lambda t: sg.spmm(t.matrix(), t.leaf(400, 20), "max")),
    Case("spmm, min", lambda t: sg.spmm(t.matrix(), t.leaf(400, 20), "min")),
    Case("spmm, max, second derivatives", _curved, WIDE),
    Case("sddmm", _sampled),
    Case("sddmm, added", _added),
    Case("sparse @ sparse", lambda t: _several(t, sg.spgemm)),
    Case("spgemm_masked", _masked),
    Case("coalesce", lambda t: t.listed((30, 20)).coalesce()),
    Case("coalesce, rows as values", lambda t: t.listed((30, 20), 8).coalesce()),
    Case("coalesce, 64-bit indices", lambda t: t.listed((2**33, 20)).coalesce().values),
    Case("sparse + sparse", lambda t: t.matrix() + t.matrix(fmt="coo")),
    Case("sparse - sparse", lambda t: t.matrix() - t.matrix(fmt="coo")),
    Case("sparse * sparse", lambda t: t.matrix() * t.matrix()),
    Case("softmax of rows", lambda t: sg.softmax(t.matrix(), 1)),
    Case("log_softmax of rows", lambda t: sg.log_softmax(t.matrix(), 1)),
    Case("sum of rows", lambda t: t.matrix().sum(1)),
    Case("max of rows", lambda t: t.matrix().amax(1)),
    Case("product of rows", _products, WIDE),
    Case("first maxima of rows", lambda t: sg.max(t.matrix(heads=2), 1).values),
    Case("first maxima of heads", lambda t: sg.max(t.matrix(heads=2), 2).values),
    Case("variances of columns", lambda t: t.matrix().var(0)),
    Case("standard deviation", lambda t: t.matrix(30, 1500).std()),
    Case("csr of arrays", _from_arrays),
    Case("csr to csc", lambda t: t.matrix().to("csc")),
    Case("rows of sparse", lambda t: t.matrix()[3:20]),
    Case("rows of sparse by index", lambda t: t.matrix()[t.ids(30, 9)]),
    Case("rows by an index that comes again", _again),
    Case("the largest of rows", lambda t: sg.top_k(t.matrix(), 3, dim=1)),
    Case("the largest of long rows", lambda t: sg.top_k(t.matrix(4, 2000), 3, dim=1)),
    # So long, and so few, that all are sorted.
    Case("the largest of longest rows", lambda t: sg.top_k(t.matrix(4, 140_000), 3, dim=1), WIDE),
    Case("cells where a mask is true", lambda t: (A := t.matrix())[A > 0.5]),
    Case("where a sparse mask is true", lambda t: sg.where(t.matrix() > 0, t.matrix(), t.matrix())),
    Case("cells where another mask is true", lambda t: t.matrix()[t.matrix() > 0.5]),
    Case("sparse to dense and back", lambda t: sg.to_sparse(t.matrix().to_dense() * 2)),
    Case("entries of dense", lambda t: sg.sparse_mask(t.leaf(30, 400), t.ones())),
    Case("entries of sparse", lambda t: sg.sparse_mask(t.matrix(), t.ones())),
    Case("sparse * dense", lambda t: t.matrix() * t.leaf(30, 1)),
    Case("cat, prune, transpose, reshape", _rearranged),
    Case("normalized graph", _graph, WIDE),
    Case("minima of columns", lambda t: sg.amin(t.matrix(), 0)),
    Case("logsumexp of rows", lambda t: sg.logsumexp(t.matrix(), 1)),
    Case("cg", _solved(lambda A, b: sg.cg(A, b, rtol=1e-7)), WIDE),
    Case("spsolve", _solved(sg.spsolve), WIDE),
    Case("triangular_solve", _solved(_triangular), WIDE),
    Case("from device to host and back", lambda t: t.leaf(9).to("cpu").to(t.device)),
    Case("segment_sum", _segments(sg.segment_sum)),
    Case("segment_softmax", _segments(sg.segment_softmax)),
    Case("embedding", lambda t: sg.embedding(t.leaf(40, 8), t.ids(40, 300))),
    Case("embedding_collection", _tables),
    Case("scatter_add", _scattered),
    Case("dense ops", _dense),
    Case("cross_entropy", _loss),
    Case("random numbers", _random, WIDE),
    Case("dropout", _dropout),
    Case("SGD", _step(sg.optim.SGD, momentum=0.9)),
    Case("Adagrad", _step(sg.optim.Adagrad)),
    Case("RowwiseAdagrad", _step(sg.optim.RowwiseAdagrad)),
    Case("RMSprop", _step(sg.optim.RMSprop, centered=True, momentum=0.5)),
    Case("Adam", _step(sg.optim.Adam)),
    Case("training of a graph network", _trained, WIDE),
    *DENSE,
)
