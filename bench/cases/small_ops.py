"""What one op on a small matrix costs: mostly calls, of Python and of libraries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from bench.cases import OURS, Candidate, Variant
from bench.cases.patterns import entries
from bench.oracle import Expected
from bench.peers import quiet, torch_coo, torch_csr

__all__ = ["SmallOps"]

_SIZES = {"full": [(100, 500), (1_000, 5_000)], "quick": [(100, 500)], "tiny": [(20, 60)]}
_WIDTH = 16  # columns of a dense matrix

Op = Callable[[Any], Any]


class _Op(NamedTuple):
    """An op on our inputs, on SciPy's, and on PyTorch's if it has it.

    Inputs: A, B in CSR, C in COO with duplicates and in no order; x (n,), X (n, 16); a row i, some
    `rows` and a `mask` of them. PyTorch also has D, which is A in COO: it knows more ops for that.
    """

    ours: Op
    scipy: Op
    torch: Op | None = None


def _on_all(op: Op) -> _Op:
    return _Op(op, op, op)


_OPS: dict[str, _Op] = {
    "CSR of arrays": _Op(
        lambda t: t.sg.csr(t.S.A.indptr, t.S.A.indices, t.S.A.data, t.S.A.shape),
        lambda t: t.sp.csr_array((t.A.data, t.A.indices, t.A.indptr), shape=t.A.shape),
        lambda t: t.torch.sparse_csr_tensor(*t.csr, t.A.shape),
    ),
    "COO of arrays": _Op(
        lambda t: t.sg.coo(t.S.C.coords, t.S.C.data, t.S.C.shape),
        lambda t: t.sp.coo_array((t.C.data, t.C.coords), shape=t.C.shape),
        lambda t: t.torch.sparse_coo_tensor(*t.coo, t.C.shape),
    ),
    "A + B": _on_all(lambda t: t.A + t.B),
    "A * B": _Op(lambda t: t.A * t.B, lambda t: t.A * t.B, lambda t: t.D * t.D_of_B),
    "2 * A": _on_all(lambda t: 2 * t.A),
    "abs(A)": _on_all(lambda t: abs(t.A)),
    "relu(A)": _Op(lambda t: t.A.relu(), lambda t: t.A.maximum(0), lambda t: t.A.relu()),
    "A @ x": _on_all(lambda t: t.A @ t.x),
    f"A @ X, {_WIDTH} columns": _on_all(lambda t: t.A @ t.X),
    f"A.T @ X, {_WIDTH} columns": _Op(
        lambda t: t.A.T @ t.X, lambda t: t.A.T @ t.X, lambda t: t.D.t() @ t.X
    ),
    "A @ B": _on_all(lambda t: t.A @ t.B),
    "A.T": _Op(lambda t: t.A.T, lambda t: t.A.T, lambda t: t.D.t()),
    "CSR to COO": _Op(
        lambda t: t.A.to("coo"), lambda t: t.A.tocoo(), lambda t: t.A.to_sparse_coo()
    ),
    "CSR to CSC": _Op(
        lambda t: t.A.to("csc"), lambda t: t.A.tocsc(), lambda t: t.A.to_sparse_csc()
    ),
    "COO to CSR": _Op(
        lambda t: t.C.to("csr"), lambda t: t.C.tocsr(), lambda t: t.C.coalesce().to_sparse_csr()
    ),
    "coalesce": _Op(lambda t: t.C.coalesce(), lambda t: _merged(t.C), lambda t: t.C.coalesce()),
    "to dense": _Op(lambda t: t.A.to_dense(), lambda t: t.A.toarray(), lambda t: t.A.to_dense()),
    "A[i]": _Op(lambda t: t.A[t.i], lambda t: t.A[t.i], lambda t: t.D[t.i]),
    "A[rows]": _Op(
        lambda t: t.A[t.rows], lambda t: t.A[t.rows], lambda t: t.D.index_select(0, t.rows)
    ),
    "A[mask]": _Op(lambda t: t.A[t.mask], lambda t: t.A[t.mask]),
    "A.sum(0)": _Op(lambda t: t.A.sum(0), lambda t: t.A.sum(0), lambda t: t.D.sum(0).to_dense()),
    "A.sum(1)": _Op(lambda t: t.A.sum(1), lambda t: t.A.sum(1), lambda t: t.D.sum(1).to_dense()),
    "B below A": _Op(
        lambda t: t.sg.cat([t.A, t.B]),
        lambda t: t.sp.vstack([t.A, t.B], format="csr"),
        lambda t: t.torch.cat([t.D, t.D_of_B]),
    ),
    "A @ X and the gradient of X": _Op(
        lambda t: t.sg.grad((t.A @ t.X).sum(), t.X)[0],
        lambda t: (t.A @ t.X, t.A.T @ t.ones)[1],
        lambda t: t.torch.autograd.grad((t.A @ t.X).sum(), t.X)[0],
    ),
}
_WITH_GRADIENT = "A @ X and the gradient of X"


def _merged(matrix: Any) -> Any:
    """SciPy merges duplicates in place."""
    copy = matrix.copy()
    copy.sum_duplicates()
    return copy


@lru_cache(maxsize=2)
def _scipy(n: int, nnz: int) -> SimpleNamespace:
    import scipy.sparse as sp

    rng = np.random.default_rng(0)

    def matrix() -> Any:
        values = rng.standard_normal(nnz, dtype=np.float32)
        where = rng.integers(0, n, (2, nnz), dtype=np.int32)  # as SciPy's own functions make them
        return sp.coo_array((values, tuple(where)), shape=(n, n))

    t = SimpleNamespace(sp=sp, A=matrix().tocsr(), B=matrix().tocsr(), C=matrix(), i=n // 2)
    t.X = rng.standard_normal((n, _WIDTH), dtype=np.float32)
    t.x, t.ones = t.X[:, 0].copy(), np.ones_like(t.X)
    t.rows, t.mask = rng.permutation(n)[: n // 5], rng.random(n) < 0.5
    return t


class _New:
    """Our inputs, with matrices that are made whenever they are read: nothing is known of them but
    their arrays."""

    def __init__(self, S: SimpleNamespace, op: str) -> None:
        import sparsegrad as sg

        self.sg, self.S, self.i, self.rows, self.mask = sg, S, S.i, S.rows, S.mask
        self.x, self.X = sg.tensor(S.x), sg.tensor(S.X, requires_grad=op == _WITH_GRADIENT)
        self._values = {M: sg.from_numpy(getattr(S, M).data) for M in "ABC"}

    def _csr(self, name: str) -> Any:
        M = getattr(self.S, name)
        arrays = M.indptr, M.indices, self._values[name], M.shape
        return self.sg.csr(*arrays, check=False, copy=False)

    @property
    def A(self) -> Any:
        return self._csr("A")

    @property
    def B(self) -> Any:
        return self._csr("B")

    @property
    def C(self) -> Any:
        M = self.S.C
        return self.sg.coo(M.coords, self._values["C"], M.shape, check=False, copy=False)


def _again(new: _New) -> SimpleNamespace:
    """The same inputs, with matrices that remember."""
    return SimpleNamespace(**vars(new), A=new.A, B=new.B, C=new.C)


def _torch(S: SimpleNamespace, op: str) -> SimpleNamespace:
    import torch

    t = SimpleNamespace(torch=torch, i=S.i, rows=torch.from_numpy(S.rows), x=torch.from_numpy(S.x))
    t.X = torch.from_numpy(S.X.copy()).requires_grad_(op == _WITH_GRADIENT)
    t.A, t.B = torch_csr(S.A, "int32"), torch_csr(S.B, "int32")
    t.D, t.D_of_B = torch_coo(S.A), torch_coo(S.B)
    t.csr = t.A.crow_indices(), t.A.col_indices(), t.A.values()
    t.coo = torch.from_numpy(np.stack(S.C.coords)), torch.from_numpy(S.C.data)
    indices, values = t.coo
    t.C = torch.sparse_coo_tensor(indices, values, S.C.shape)
    return t


class SmallOps:
    """One op on small matrices. Ours are new in every call, made of the arrays of CSR without a
    check; *again* are such that remember what was worked out for them before."""

    name = "small-ops"
    title = "One op on small matrices, CSR, float32"
    threaded = False
    memory = False
    per = 1
    budget_s = 1.2

    def variants(self, size: str) -> list[Variant]:
        return [
            {"label": f"{op}: {n:,}², nnz {nnz:,}", "op": op, "sizes": [n, nnz]}
            for n, nnz in _SIZES[size]
            for op in _OPS
        ]

    def expected(self, variant: Variant) -> Mapping[str, Expected]:
        S = _scipy(*variant["sizes"])
        wide = {name: getattr(S, name).astype(np.float64) for name in ("A", "B", "C", "x", "X")}
        found = _OPS[variant["op"]].scipy(SimpleNamespace(**vars(S) | wide))
        return {name: Expected(array, 1.0) for name, array in _arrays(found).items()}

    def candidates(self, variant: Variant) -> list[Candidate]:
        S, op = _scipy(*variant["sizes"]), variant["op"]
        ours, scipy, torch = _OPS[op]

        def on(inputs: Callable[[], Any], fn: Op) -> Callable[[], Callable[[], Any]]:
            def make() -> Callable[[], Any]:
                t = inputs()
                return lambda: fn(t)

            return make

        found = [
            Candidate(OURS, on(lambda: _New(S, op), ours), _arrays, role="ours"),
            Candidate("again", on(lambda: _again(_New(S, op)), ours), _arrays, role="reference"),
            Candidate("SciPy", on(lambda: S, scipy), _arrays, needs="scipy"),
        ]
        if torch is not None:
            make = on(lambda: _torch(S, op), torch)
            found.append(Candidate("torch", make, _arrays, needs="torch"))
        return found


def _arrays(found: Any) -> dict[str, np.ndarray]:
    """A result of any of them: its entries, duplicates summed, or its elements."""
    if hasattr(found, "to_scipy"):
        found = found.to_scipy()
    elif hasattr(found, "layout") and str(found.layout) != "torch.strided":
        found = _to_scipy(found)
    elif hasattr(found, "detach"):
        found = found.detach().numpy()
    if hasattr(found, "sum_duplicates"):
        found = found.copy()
        found.sum_duplicates()
    return entries(found)


def _to_scipy(found: Any) -> Any:
    """A sparse tensor of PyTorch in COO."""
    import scipy.sparse as sp

    with quiet():
        coo = found.to_sparse_coo().coalesce()
    where = tuple(coo.indices().numpy())
    return sp.coo_array((coo.values().numpy(), where), shape=tuple(coo.shape))
