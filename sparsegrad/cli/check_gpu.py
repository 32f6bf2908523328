"""`sparsegrad check-gpu`: kernels compiled for the card, ops compared with the CPU."""

from __future__ import annotations

import importlib.util
import time
import warnings
from collections.abc import Iterable
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

import sparsegrad as sg
from sparsegrad import backends
from sparsegrad.cli.command import fail
from sparsegrad.cli.gpu_cases import CASES
from sparsegrad.cli.gpu_inputs import Case, Inputs

__all__ = ["check_gpu"]

# Largest difference, relative to the largest element: float32 sums come in another order.
TOLERANCE = {"float64": 1e-11, "float32": 2e-5, "float16": 1e-2, "bfloat16": 8e-2}

_Device = Annotated[str, typer.Option(help="Which one: cuda, cuda:1.")]
_Compile = Annotated[
    bool,
    typer.Option("--compile/--no-compile", help="Compile every kernel, or only those in use."),
]


def check_gpu(device: _Device = "cuda", compile: _Compile = True) -> None:
    """Compile every kernel for a GPU and compare ops and their gradients with the CPU."""
    try:
        if backends.named(device).type != "cuda":
            raise ValueError(f"--device must be cuda or cuda:<number>, got {device!r}")
        backends.for_device(device)
    except (sg.SparsegradError, ValueError) as error:
        fail(error)
    console = Console()
    for name, found in sg.cuda.describe().items():
        console.print(f"{name}: {found}", highlight=False, markup=False)
    failures = _compiled(console) if compile else []
    failures += _compared(console, device)
    for failure in failures:
        console.print(failure, highlight=False, markup=False, soft_wrap=True)
    if failures:
        console.print(f"{len(failures)} failures")
        raise typer.Exit(1)
    console.print("no failures")


# ---- kernels -----------------------------------------------------------------------------------
def _compiled(console: Console) -> list[str]:
    from sparsegrad.backends import cuda_kernels as kernels

    every = kernels.all_kernels()
    start = time.perf_counter()
    results = track(
        kernels.compiled(every), "compiling kernels", len(every), console=console, transient=True
    )
    failures = [f"kernel {name}: {problem}" for name, problem in results if problem is not None]
    seconds = time.perf_counter() - start
    console.print(f"{len(every) - len(failures)} of {len(every)} kernels compiled, {seconds:.0f} s")
    return failures


# ---- ops ---------------------------------------------------------------------------------------
def _compared(console: Console, device: str) -> list[str]:
    dtypes = [d for d in TOLERANCE if d != "bfloat16" or importlib.util.find_spec("ml_dtypes")]
    table = Table("largest difference from the CPU", *dtypes)
    failures = []
    for case in track(CASES, "comparing ops", console=console, transient=True):
        cells = []
        for dtype in dtypes:
            if dtype not in case.dtypes:
                cells.append("")
                continue
            difference, problem = _difference(case, device, dtype)
            cells.append("failed" if problem else f"{difference:.0e}")
            failures += [f"{case.name}, {dtype}: {problem}"] if problem else []
        table.add_row(case.name, *cells)
    console.print(table)
    return failures


def _difference(case: Case, device: str, dtype: str) -> tuple[float, str | None]:
    """The largest difference between device and CPU, and what is wrong with it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", sg.SparseEfficiencyWarning)
            expected, found = (_results(case, Inputs(where, dtype)) for where in ("cpu", device))
            largest = max(
                (_distance(f, e) for f, e in zip(found, expected, strict=True)), default=0.0
            )
    except Exception as error:  # whatever a broken card or library raises is what is reported
        return np.inf, f"{type(error).__name__}: {' '.join(str(error).split())}"
    if largest <= TOLERANCE[dtype]:
        return largest, None
    return largest, f"differs by {largest:.1e}, more than {TOLERANCE[dtype]:.0e}"


def _results(case: Case, inputs: Inputs) -> list[np.ndarray]:
    """The result on the host, where its entries are if it is sparse, and the gradients."""
    out = case.run(inputs)
    if isinstance(out, sg.SparseTensor):
        where = [sg.tensor(ids) for ids in out.pattern.coords]
        values = out.values
    else:
        where, values = [], out
    gradients: Iterable[Any] = ()
    if values.requires_grad:
        weight = np.random.default_rng(1).uniform(-1, 1, values.shape)
        g = sg.tensor(weight, dtype=inputs.dtype).to(inputs.device)
        gradients = sg.grad(values, inputs.leaves, g, allow_unused=True)
    return [_on_host(t) for t in (values, *where, *gradients) if t is not None]


def _on_host(t: Any) -> np.ndarray:
    dense = t.to_dense() if isinstance(t, sg.SparseTensor) else t
    return dense.detach().numpy().astype(np.float64)


def _distance(found: np.ndarray, expected: np.ndarray) -> float:
    if found.shape != expected.shape:
        raise sg.ShapeError(f"shape {found.shape}, on the CPU {expected.shape}")
    scale = max(1.0, float(np.abs(expected).max(initial=0)))
    return float(np.abs(found - expected).max(initial=0)) / scale
