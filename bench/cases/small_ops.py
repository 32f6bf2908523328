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
from bench.peers import quiet

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
    "CSR, checked": _Op(
        lambda t: t.sg.csr(t.S.A.indptr, t.S.A.indices, t.S.A.data, t.S.A.shape),
        lambda t: t.A,
        lambda t: t.A,
    ),
    "COO, checked": _Op(
        lambda t: t.sg.coo(t.S.C.coords, t.S.C.data, t.S.C.shape), lambda t: t.C, lambda t: t.C
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
_MADE = ("CSR, checked", "COO, checked")


def _merged(matrix: Any) -> Any:
    """SciPy merges duplicates in place."""
    copy = matrix.copy()
    copy.sum_duplicates()
    return copy


class _Inputs:
    """What ops read. Matrices are made of their arrays whenever they are read, unless `keep` was
    called: nothing is known of them but these arrays."""

    def __init__(self, matrices: dict[str, Callable[[], Any]], **others: Any) -> None:
        self._matrices = matrices
        vars(self).update(others)

    def __getattr__(self, name: str) -> Any:
        return self._matrices[name]()

    def keep(self) -> _Inputs:
        vars(self).update({name: make() for name, make in self._matrices.items()})
        return self


@lru_cache(maxsize=2)
def _arrays_of(n: int, nnz: int) -> SimpleNamespace:
    """What everybody begins with: A and B as SciPy's CSR, C as its COO."""
    import scipy.sparse as sp

    rng = np.random.default_rng(0)

    def matrix() -> Any:
        values = rng.standard_normal(nnz, dtype=np.float32)
        where = rng.integers(0, n, (2, nnz), dtype=np.int32)  # as SciPy's own functions make them
        return sp.coo_array((values, tuple(where)), shape=(n, n))

    A, B, C = matrix().tocsr(), matrix().tocsr(), matrix()
    A.sum_duplicates()
    B.sum_duplicates()
    X = rng.standard_normal((n, _WIDTH), dtype=np.float32)
    rows, mask = rng.permutation(n)[: n // 5], rng.random(n) < 0.5
    return SimpleNamespace(A=A, B=B, C=C, X=X, x=X[:, 0].copy(), rows=rows, mask=mask)


def _scipy(S: SimpleNamespace, dtype: Any = np.float32) -> _Inputs:
    import scipy.sparse as sp

    def csr(M: Any) -> Any:
        data = M.data.astype(dtype)
        return lambda: sp.csr_array((data, M.indices, M.indptr), shape=M.shape)

    values = S.C.data.astype(dtype)
    matrices = {
        "A": csr(S.A),
        "B": csr(S.B),
        "C": lambda: sp.coo_array((values, S.C.coords), shape=S.C.shape),
    }
    dense = {"x": S.x.astype(dtype), "X": S.X.astype(dtype), "ones": np.ones_like(S.X, dtype)}
    return _Inputs(matrices, sp=sp, i=len(S.x) // 2, rows=S.rows, mask=S.mask, **dense)


def _ours(S: SimpleNamespace, needs_grad: bool) -> _Inputs:
    import sparsegrad as sg

    def csr(M: Any) -> Any:
        arrays = M.indptr, M.indices, sg.from_numpy(M.data), M.shape
        return lambda: sg.csr(*arrays, check=False, copy=False)

    values = sg.from_numpy(S.C.data)
    matrices = {
        "A": csr(S.A),
        "B": csr(S.B),
        "C": lambda: sg.coo(S.C.coords, values, S.C.shape, check=False, copy=False),
    }
    dense = {"x": sg.tensor(S.x), "X": sg.tensor(S.X, requires_grad=needs_grad)}
    return _Inputs(matrices, sg=sg, S=S, i=len(S.x) // 2, rows=S.rows, mask=S.mask, **dense)


def _torch(S: SimpleNamespace, needs_grad: bool) -> _Inputs:
    import torch

    def csr(M: Any) -> Any:
        crow, col, values = map(torch.from_numpy, (M.indptr, M.indices, M.data))
        return lambda: torch.sparse_csr_tensor(crow, col, values, M.shape)

    def coo(M: Any, coalesced: bool) -> Any:
        indices = torch.from_numpy(np.stack([c.astype(np.int64) for c in M.coords]))
        values = torch.from_numpy(M.data)
        return lambda: torch.sparse_coo_tensor(
            indices, values, M.shape, is_coalesced=coalesced or None
        )

    matrices = {
        "A": csr(S.A),
        "B": csr(S.B),
        "C": coo(S.C, False),
        "D": coo(S.A.tocoo(), True),
        "D_of_B": coo(S.B.tocoo(), True),
    }
    X = torch.from_numpy(S.X.copy()).requires_grad_(needs_grad)
    dense = {"x": torch.from_numpy(S.x), "X": X, "rows": torch.from_numpy(S.rows)}
    return _Inputs(matrices, torch=torch, i=len(S.x) // 2, **dense)


class SmallOps:
    """One op on small matrices. *new*: everybody makes the matrices of their arrays in each call;
    *kept*: of the same matrices again."""

    name = "small-ops"
    title = "One op on small matrices, CSR, float32"
    threaded = False
    memory = False
    per = 1
    budget_s = 0.6

    def variants(self, size: str) -> list[Variant]:
        return [
            {"label": f"{op}, {how}: {n:,}², nnz {nnz:,}", "op": op, "sizes": [n, nnz], "how": how}
            for n, nnz in _SIZES[size]
            for op in _OPS
            for how in ("new", "kept")
            if how == "new" or op not in _MADE
        ]

    def expected(self, variant: Variant) -> Mapping[str, Expected]:
        found = _OPS[variant["op"]].scipy(_scipy(_arrays_of(*variant["sizes"]), np.float64))
        return {name: Expected(array, 1.0) for name, array in _arrays(found).items()}

    def candidates(self, variant: Variant) -> list[Candidate]:
        S, op = _arrays_of(*variant["sizes"]), variant["op"]
        ours, scipy, torch = _OPS[op]
        needs_grad = op == _WITH_GRADIENT

        def on(inputs: Callable[[], _Inputs], fn: Op) -> Callable[[], Callable[[], Any]]:
            def make() -> Callable[[], Any]:
                t = inputs() if variant["how"] == "new" else inputs().keep()
                return lambda: fn(t)

            return make

        # Who keeps no tape is no rival where there is a gradient.
        role = "reference" if needs_grad else "peer"
        found = [
            Candidate(OURS, on(lambda: _ours(S, needs_grad), ours), _arrays, role="ours"),
            Candidate("SciPy", on(lambda: _scipy(S), scipy), _arrays, needs="scipy", role=role),
        ]
        if torch is not None:
            make = on(lambda: _torch(S, needs_grad), torch)
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
