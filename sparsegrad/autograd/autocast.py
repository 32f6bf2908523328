"""Autocast: products in 16 bits, sums and losses in 32, whatever dtype their inputs come in."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import Token
from typing import Any, NamedTuple, TypeVar

import numpy as np

from sparsegrad import dtypes
from sparsegrad.engine.mode import autocasting
from sparsegrad.engine.primitive import Primitive, registry
from sparsegrad.errors import DtypeError
from sparsegrad.ops.elementwise import cast
from sparsegrad.tensor import Tensor

__all__ = ["autocast", "full_precision", "is_autocast_enabled"]

F = TypeVar("F", bound=Callable[..., Any])

# Products: many operations on each number, summed in float32 by every backend.
_NARROW = (
    *("matmul_p", "linear_p", "spmm_p", "spmm_bias_act_p", "spmm_extreme_p", "sddmm_p"),
    *("spgemm_p", "spgemm_masked_p"),
)
# Sums, exponentials, solvers: PyTorch's list, and the sums of sparse tensors.
_WIDE = (
    *("sum_p", "mean_p", "var_p", "cumsum_p", "logsumexp_p", "softmax_p", "log_softmax_p"),
    *("cross_entropy_p", "layer_norm_p", "merge_p"),
    *("segment_sum_p", "segment_softmax_p", "segment_log_softmax_p", "segment_logsumexp_p"),
    *("put_rows_p", "exp_p", "expm1_p", "log_p", "log1p_p", "log2_p", "log10_p", "pow_p"),
    *("reciprocal_p", "rsqrt_p", "softplus_p", "sinh_p", "cosh_p", "tan_p", "asin_p", "acos_p"),
    *("cholesky_p", "det_p", "eigh_p", "inv_p", "krylov_p", "qr_p", "slogdet_p", "solve_p"),
    *("spsolve_p", "triangular_p"),
)


class _Policy(NamedTuple):
    dtype: np.dtype
    device: str | None  # "cpu" or "cuda"; None: wherever the tensors are


class _Casting(Primitive):
    """A primitive of the lists above, once autocast has been used: it looks whether it is on."""

    def __call__(self, *args: Any, **static: Any) -> Any:
        policy = autocasting.get()
        if policy is not None:
            args = _cast_all(args, policy, policy.dtype if self.name in _NARROW else dtypes.float32)
        return Primitive.__call__(self, *args, **static)

    unary = binary = __call__  # no shortcut around it


def _cast_all(args: tuple[Any, ...], policy: _Policy, dtype: np.dtype) -> tuple[Any, ...]:
    """Tensors of 16 and 32 bits in `dtype`; float64 among them was meant, and nothing is cast."""
    tensors = [a for a in args if isinstance(a, Tensor)]
    wide = any(t.dtype == dtypes.float64 for t in tensors)
    if wide or any(policy.device not in (None, t.device.type) for t in tensors):
        return args
    return tuple(cast(a, dtype) if isinstance(a, Tensor) and _floats(a) else a for a in args)


def _floats(t: Tensor) -> bool:
    return dtypes.kind(t.dtype) == "f"


def full_precision(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Inputs of a loss: in float32 where autocast is on, as they are where it is not."""
    policy = autocasting.get()
    return tensors if policy is None else _cast_all(tensors, policy, dtypes.float32)


def is_autocast_enabled() -> bool:
    """Whether ops of this thread or task are autocast.

    >>> import sparsegrad as sg
    >>> with sg.amp.autocast(dtype=sg.float16):
    ...     sg.amp.is_autocast_enabled()
    True
    """
    return autocasting.get() is not None


class autocast:
    """Mixed precision inside: a context manager, and a decorator.

    Products (`@`, `linear`, convolutions, `spmm`, `sddmm`, sparse @ sparse) run and return in
    `dtype`; they sum in float32. Sums, means, softmax, exponentials, logarithms, solvers and losses
    run and return in float32. Other ops take what comes, the wider dtype where two meet. float64 is
    never cast, neither are integers. Gradients arrive in the dtype of the tensor they belong to:
    float32 parameters have float32 gradients. The backward pass runs in the dtypes of the forward
    pass, inside or outside the block.

    device_type: "cuda" or "cpu", only tensors there; None: all.
    dtype: float16, or bfloat16 (needs ml_dtypes). float16 overflows at 65504 and loses gradients
        below 6e-8: use it with `GradScaler`.
    enabled: False turns autocast off inside.

    Raises DtypeError for another dtype, ValueError for another device_type.

    Micikevicius et al., "Mixed precision training", ICLR 2018.

    >>> import sparsegrad as sg
    >>> A = sg.coo([[0, 1], [1, 0]], [2.0, 3.0], (2, 2), requires_grad=True)
    >>> with sg.amp.autocast(dtype=sg.float16):
    ...     y = A @ sg.ones(2, 3)
    ...     loss = y.sum()
    >>> loss.backward()
    >>> y.dtype, loss.dtype, A.grad.dtype
    (dtype('float16'), dtype('float32'), dtype('float32'))
    """

    def __init__(
        self, device_type: str | None = None, dtype: Any = dtypes.float16, enabled: bool = True
    ) -> None:
        if device_type not in (None, "cpu", "cuda"):
            raise ValueError(f"autocast: device_type must be 'cpu' or 'cuda', got {device_type!r}")
        dtype = dtypes.as_dtype(dtype)
        if dtypes.kind(dtype) != "f" or dtype.itemsize != 2:
            raise DtypeError(f"autocast: dtype must be float16 or bfloat16, got {dtype}")
        self._policy = _Policy(dtype, device_type) if enabled else None
        self._tokens: list[Token[Any]] = []
        if enabled:
            for name in (*_NARROW, *_WIDE):  # until then a call of theirs costs nothing more
                registry[name].__class__ = _Casting

    def __enter__(self) -> autocast:
        self._tokens.append(autocasting.set(self._policy))
        return self

    def __exit__(self, *exc: object) -> None:
        autocasting.reset(self._tokens.pop())

    def __call__(self, fn: F) -> F:
        policy = self._policy

        @functools.wraps(fn)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            token = autocasting.set(policy)
            try:
                return fn(*args, **kwargs)
            finally:
                autocasting.reset(token)

        return wrapped  # type: ignore[return-value]
