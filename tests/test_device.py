"""The op table on the devices that --device names, compared with the CPU."""

from __future__ import annotations

import re
import sys
from typing import Any

import numpy as np
import pytest

import sparsegrad as sg
from op_db import OP_DB, Draw, OpCase, Sparse
from op_db.case import Sample
from sparsegrad.sparse_tensor import SparseTensor, wrap
from test_ops import Call

pytestmark = [
    pytest.mark.device,
    pytest.mark.filterwarnings("ignore::sparsegrad.errors.SparseEfficiencyWarning"),
]

TOL = {"float16": 1e-2, "bfloat16": 8e-2, "float32": 2e-5, "float64": 1e-11}
SAMPLES = 4  # of a row: kernels are compiled once for all, but the simulator is slow


class Placed(Call):
    """A sample of a row on a device."""

    def __init__(self, device: str, *args: Any) -> None:
        super().__init__(*args)
        self.device = device

    def _built(self, a: Sparse, values: sg.Tensor) -> SparseTensor:
        pattern = a.build(self.fmt, sg.Tensor(a.values)).pattern
        return wrap(values, pattern.to_device(self.device))

    def sparse_args(self, leaves: list[sg.Tensor]) -> list[Any]:
        return [
            self._built(a, leaf) if isinstance(a, Sparse) else leaf
            for a, leaf in zip(self.args, leaves, strict=True)
        ]

    def op(self, *leaves: sg.Tensor) -> Any:
        static = {name: self._placed(value) for name, value in self.static.items()}
        return self.case.op(*self.sparse_args(list(leaves)), **static)

    def _placed(self, value: Any) -> Any:
        if isinstance(value, Sparse):
            return self._built(value, sg.tensor(value.values, device=self.device))
        if isinstance(value, np.ndarray):  # an index or a mask
            return sg.backends.for_device(self.device).asarray(value)
        if isinstance(value, tuple):
            return tuple(map(self._placed, value))
        return value

    def leaves(self, requires_grad: bool = False) -> list[sg.Tensor]:
        return [sg.tensor(a, requires_grad=requires_grad, device=self.device) for a in self.arrays]


def outcome(call: Call) -> tuple[Any, list[Any]]:
    """The result and the gradients of all arguments for a random upstream."""
    leaves = call.leaves(requires_grad=bool(call.case.order))
    out = call.op(*leaves)
    values = out.values if isinstance(out, SparseTensor) else out
    if not values.requires_grad:
        return out, []
    upstream = np.random.default_rng(0).standard_normal(values.shape).astype(values.dtype)
    g = sg.Tensor(upstream).to(values.device)
    return out, list(sg.grad(values, leaves, g, allow_unused=True))


def on_host(x: Any) -> Any:
    if x is None:
        return None
    return (x.detach().to_dense() if isinstance(x, SparseTensor) else x.detach()).numpy()


def same(found: Any, expected: Any, tol: float) -> None:
    found, expected = on_host(found), on_host(expected)
    if expected is None:
        assert found is None
        return
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    if found.dtype.itemsize == 2 and found.dtype.kind in "fV":
        found, expected = found.astype("f"), expected.astype("f")
    scale = max(1.0, float(np.abs(expected).max(initial=0))) if expected.dtype.kind == "f" else 1
    np.testing.assert_allclose(found, expected, rtol=tol, atol=tol * scale)


def compare(case: OpCase, fmt: str | None, dtype: str, device: str, count: int) -> None:
    samples = list(case.samples(Draw()))
    step = max(1, len(samples) // count)
    for sample in samples[::step][:count]:
        expected = outcome(Call(case, sample, fmt, dtype))
        with sg.config(deterministic=True):
            found = outcome(Placed(device, case, sample, fmt, dtype))
            again = outcome(Placed(device, case, sample, fmt, dtype))
        assert found[0].device.type == "cuda"
        tol = max(TOL[dtype], case.tol.get(dtype, 0))
        if isinstance(expected[0], SparseTensor):
            where = [c.tolist() for c in expected[0].pattern.coords]
            assert [c.tolist() for c in found[0].pattern.coords] == where
        for f, a, e in zip(
            (found[0], *found[1]), (again[0], *again[1]), (expected[0], *expected[1]), strict=True
        ):
            same(f, e, tol)
            np.testing.assert_array_equal(on_host(f), on_host(a))


ROWS = [case for case in OP_DB if "to_device" not in case.name]  # those stay on the CPU
SPARSE = [pytest.param(case, fmt, id=f"{case.name}-{fmt}") for case in ROWS for fmt in case.formats]
DENSE = [pytest.param(case, id=case.name) for case in ROWS if not case.formats]


@pytest.mark.parametrize(("case", "fmt"), SPARSE)
def test_sparse_ops_agree_with_the_cpu(case: OpCase, fmt: str, device: str) -> None:
    compare(case, fmt, "float32", device, SAMPLES)


def simulated() -> bool:
    simulator = sys.modules.get("cudasim")
    return simulator is not None and simulator.installed()


class Kept(Placed):
    """A sample whose patterns, index arrays and masks are the same in every call: their index work
    is done, and nothing that makes them is counted."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.kept: dict[int, Any] = {}

    def _built(self, a: Sparse, values: sg.Tensor) -> SparseTensor:
        if id(a) not in self.kept:
            self.kept[id(a)] = super()._built(a, values).pattern
        return wrap(values, self.kept[id(a)])

    def _placed(self, value: Any) -> Any:
        if not isinstance(value, np.ndarray | Sparse):
            return super()._placed(value)
        key = -id(value)  # a pattern is kept under the number itself
        if key not in self.kept:
            self.kept[key] = super()._placed(value)
        return self.kept[key]


def launches(call: Kept) -> tuple[list[str], list[str]]:
    """Kernels of the second forward, and of the gradient of the argument that takes the most."""
    record = sys.modules["cudasim"].record_launches
    for _ in range(2):
        leaves = call.leaves(requires_grad=bool(call.case.order))
        with record() as forward:
            out = call.op(*leaves)
        values = out.values if isinstance(out, SparseTensor) else out
        backward: list[Any] = []
        for leaf in leaves if values.requires_grad else ():
            g = sg.ones_like(values)
            with record() as found:
                sg.grad(values, [leaf], g, retain_graph=True, allow_unused=True)
            backward = max(backward, found, key=len)
    return [x.kernel for x in forward], [x.kernel for x in backward]


# How many launches an op may take whose index work is done, forward and for one gradient; and those
# that take more: why, and how many of either.
LAUNCHES = 4
MORE = {
    # cuSPARSE's triangular solve is an analysis of pattern and values, and a solve, each of so many
    # launches as the matrix asks for; and the simulator has no stand-in for it.
    "solved on the host, or by as many products as it takes": """
        spsolve 7 4; cg 230 230; bicgstab 600 450; gmres 600 600; triangular_solve[000]
        11 7; triangular_solve[011] 11 7; triangular_solve[100] 11 7;
        triangular_solve[101] 11 7; triangular_solve[110] 11 7; bicgstab[afresh] 300 300;
        matrix_power[sparse,3] 4 6
    """,
}
# With duplicates, which ops that are not linear sum first, in one launch, or two if there are many.
MORE_WITH_DUPLICATES = {
    "the norm of a matrix: the sum, a reordering on the way back": """
        matrix_norm[sparse,1] 4 5; matrix_norm[sparse,inf] 4 5
    """,
    "a chain of products": "matrix_power[sparse,3] 4 8",
    "matrix and mask, the true cells: counted, waited for, listed": """
        getitem[own mask] 5 2; getitem[sparse mask] 5 2; masked_select[sparse] 5 2
    """,
    "another system, other iterations": "bicgstab 1200 1200",
    "many duplicates in a long run": "top_k[long] 6 2",
    "the row has two ops, or one more": """
        maximum[sparse,number] 5 6; remainder[sparse,number] 5 3
    """,
}


def limits(more: dict[str, str]) -> dict[str, tuple[int, ...]]:
    found = {}
    for line in ";".join(more.values()).split(";"):
        name, *most = " ".join(line.split()).rsplit(" ", 2)
        found[name] = tuple(map(int, most))
    return found


LIMITS = limits(MORE)
LIMITS_WITH_DUPLICATES = LIMITS | limits(MORE_WITH_DUPLICATES)
BY_NAME = {case.name: case for case in ROWS if case.formats}


def test_launch_limits_name_rows_of_the_table() -> None:
    assert set(LIMITS_WITH_DUPLICATES) <= set(BY_NAME)
    assert all(max(limit) > LAUNCHES for limit in LIMITS_WITH_DUPLICATES.values())


def twice(sample: Sample) -> Sample:
    """Every sparse argument with duplicates of every second entry, in no order."""
    args, static = sample
    return tuple(map(_twice, args)), {name: _twice(value) for name, value in static.items()}


def _twice(a: Any) -> Any:
    if not isinstance(a, Sparse):
        return a
    nnz = a.coords.shape[1]
    order = np.random.default_rng(nnz).permutation(np.r_[:nnz, :nnz:2])
    return Sparse(a.coords[:, order], a.values[order], a.shape)


@pytest.mark.parametrize("duplicates", [False, True], ids=["plain", "duplicates"])
@pytest.mark.parametrize("case", BY_NAME.values(), ids=BY_NAME)
def test_sparse_ops_take_few_launches(case: OpCase, duplicates: bool, device: str) -> None:
    if not simulated():
        pytest.skip("only the simulator counts launches")
    known = LIMITS_WITH_DUPLICATES if duplicates else LIMITS
    forward, backward = known.get(case.name, (LAUNCHES, LAUNCHES))
    samples = list(case.samples(Draw()))
    # An odd step: kinds of matrices, duplicates among them, meet options that come in turn.
    for sample in samples[:: max(1, len(samples) // 4) | 1]:
        if duplicates:
            call = Kept(device, case, twice(sample), case.formats[0], "float32")
        else:
            call = Kept(device, case, sample, case.formats[-1], "float32")
        found = launches(call)
        assert len(found[0]) <= max(forward, LAUNCHES), found[0]
        assert len(found[1]) <= max(backward, LAUNCHES), found[1]


# Those that sum in float32 what they read in 16 bits, and formulas: no casts around kernels.
NARROW = r"gcn_norm|row_normalize|spmm\[(bias|relu|sigmoid)|(var|std)\[sparse|norm\[sparse,2\]"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", [name for name in BY_NAME if re.match(NARROW, name)])
def test_sparse_ops_take_few_launches_in_16_bits(name: str, dtype: str, device: str) -> None:
    if not simulated():
        pytest.skip("only the simulator counts launches")
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    case = BY_NAME[name]
    for sample in list(case.samples(Draw()))[::3]:
        found = launches(Kept(device, case, sample, case.formats[-1], dtype))
        assert max(map(len, found)) <= LAUNCHES, found


KERNELS = "spmm|spgemm|matmul|sddmm|softmax|log_softmax|logsumexp"
FLOATS = [
    pytest.param(*p.values, dtype, id=f"{p.id}-{dtype}")
    for dtype in ("float64", "float16", "bfloat16")
    for p in SPARSE
    if re.match(KERNELS, p.id) and (dtype == "float64" or p.values[1] == "csr")
]


@pytest.mark.parametrize(("case", "fmt", "dtype"), FLOATS)
def test_products_agree_with_the_cpu(case: OpCase, fmt: str, dtype: str, device: str) -> None:
    """The fast ones, whose bits may differ from run to run, and softmax: in every float dtype."""
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    for sample in list(case.samples(Draw()))[:: 3 if dtype == "float64" else 9]:
        for f, e in zip(
            outcome(Placed(device, case, sample, fmt, dtype)),
            outcome(Call(case, sample, fmt, dtype)),
            strict=True,
        ):
            for a, b in zip(*(x if isinstance(x, list) else [x] for x in (f, e)), strict=True):
                same(a, b, TOL[dtype])


# Dense linear algebra is cuSOLVER's, for which the simulator has no stand-in.
CUSOLVER = {
    *("solve", "inv", "det", "slogdet", "cholesky", "qr", "eigh", "eigvalsh", "svd", "svdvals"),
    *("pinv", "matrix_rank", "matrix_power", "matrix_norm", "cond", "lstsq", "solve_triangular"),
}


@pytest.mark.parametrize("case", DENSE)
def test_dense_ops_agree_with_the_cpu(case: OpCase, device: str) -> None:
    if case.name.partition("[")[0] in CUSOLVER and simulated():
        pytest.skip("the simulator has no cuSOLVER")
    compare(case, None, "float32", device, 1)


@pytest.mark.parametrize("case", [p for p in DENSE if p.values[0].order])
def test_dense_ops_in_bfloat16(case: OpCase, device: str) -> None:
    """CuPy has its own idea of what a bfloat16 and a Python number make."""
    pytest.importorskip("ml_dtypes")
    if simulated() and (
        [p.values[0] for p in DENSE].index(case) % 6 or case.name.partition("[")[0] in CUSOLVER
    ):
        pytest.skip("one in six runs on the simulator, which has no cuSOLVER")
    compare(case, None, "bfloat16", device, 1)


# A million rows take the simulator seconds, so it runs some of these; a GPU runs all.
HUGE = [p for p in SPARSE if p.values[0].huge is not None and p.values[1] == "coo"]


@pytest.mark.parametrize(("case", "fmt"), HUGE)
def test_nothing_is_densified_on_the_device(case: OpCase, fmt: str, device: str) -> None:
    """10^6 x 10^6 with ten entries, forward and backward."""
    if simulated() and [p.values[0] for p in HUGE].index(case) % 8:
        pytest.skip("takes the simulator seconds: one in eight runs there")
    call = Placed(device, case, case.huge(Draw(3)), fmt, "float32")
    with sg.densify(budget=0, on_exceed="raise") as report:
        leaves = call.leaves(requires_grad=True)
        out = call.values(*leaves)
        if out.requires_grad:
            sg.grad(out, leaves, sg.ones_like(out), allow_unused=True)
    assert report.events == []
