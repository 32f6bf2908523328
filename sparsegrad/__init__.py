"""sparsegrad: a define-by-run autograd engine in which sparse is first class.

>>> import sparsegrad as sg
>>> A = sg.coo([[0, 1], [1, 0]], [2.0, 3.0], (2, 2), requires_grad=True)
>>> x = sg.tensor([[1.0], [2.0]])
>>> (A @ (A @ x)).sum().backward()
>>> A.grad.values
tensor([9., 6.])
"""

import sys
import typing

from sparsegrad import (
    amp,
    autograd,
    create,
    cuda,
    data,
    dtypes,
    errors,
    interop,
    io,
    nn,
    ops,
    optim,
    policy,
    sampling,
)
from sparsegrad.autograd import Function, checkpoint, gradcheck, gradgradcheck
from sparsegrad.backends.cpu_jit_launch import get_num_threads, set_num_threads
from sparsegrad.config import config
from sparsegrad.create import *  # noqa: F403
from sparsegrad.device import Device
from sparsegrad.dtypes import (
    bool_ as bool,
)
from sparsegrad.dtypes import (
    complex64,
    complex128,
    finfo,
    float16,
    float32,
    float64,
    get_default_dtype,
    iinfo,
    int8,
    int16,
    int32,
    int64,
    promote_types,
    result_type,
    set_default_dtype,
    uint8,
)
from sparsegrad.engine.anomaly import (
    detect_anomaly,
    is_anomaly_check_nan_enabled,
    is_anomaly_enabled,
    set_detect_anomaly,
)
from sparsegrad.engine.differentiate import grad
from sparsegrad.engine.mode import densify, enable_grad, is_grad_enabled, no_grad, set_grad_enabled
from sparsegrad.errors import *  # noqa: F403
from sparsegrad.io import *  # noqa: F403
from sparsegrad.ops import linalg
from sparsegrad.ops.activations import *  # noqa: F403
from sparsegrad.ops.aliases import *  # noqa: F403
from sparsegrad.ops.arrangements import *  # noqa: F403
from sparsegrad.ops.attention import *  # noqa: F403
from sparsegrad.ops.bias import *  # noqa: F403
from sparsegrad.ops.binary import *  # noqa: F403
from sparsegrad.ops.blocks import *  # noqa: F403
from sparsegrad.ops.comparisons import *  # noqa: F403
from sparsegrad.ops.composite import *  # noqa: F403
from sparsegrad.ops.contract import *  # noqa: F403
from sparsegrad.ops.dense_matmul import *  # noqa: F403
from sparsegrad.ops.elementwise import *  # noqa: F403
from sparsegrad.ops.fused import *  # noqa: F403
from sparsegrad.ops.index import *  # noqa: F403
from sparsegrad.ops.likelihood import *  # noqa: F403
from sparsegrad.ops.lowrank import *  # noqa: F403
from sparsegrad.ops.normalization import *  # noqa: F403
from sparsegrad.ops.pooling import *  # noqa: F403
from sparsegrad.ops.quantiles import *  # noqa: F403
from sparsegrad.ops.questions import *  # noqa: F403
from sparsegrad.ops.rearrange import *  # noqa: F403
from sparsegrad.ops.rectifiers import *  # noqa: F403
from sparsegrad.ops.reduce import *  # noqa: F403
from sparsegrad.ops.resize import *  # noqa: F403
from sparsegrad.ops.scan import *  # noqa: F403
from sparsegrad.ops.scatter_runs import *  # noqa: F403
from sparsegrad.ops.scattering import *  # noqa: F403
from sparsegrad.ops.segment import *  # noqa: F403
from sparsegrad.ops.shape import *  # noqa: F403
from sparsegrad.ops.softmaxes import *  # noqa: F403
from sparsegrad.ops.sorting import *  # noqa: F403
from sparsegrad.ops.sparse_diagonal import *  # noqa: F403
from sparsegrad.ops.sparse_graph import *  # noqa: F403
from sparsegrad.ops.sparse_index import *  # noqa: F403
from sparsegrad.ops.sparse_matmul import *  # noqa: F403
from sparsegrad.ops.sparse_product import *  # noqa: F403
from sparsegrad.ops.sparse_prune import *  # noqa: F403
from sparsegrad.ops.sparse_shape import *  # noqa: F403
from sparsegrad.ops.sparse_solve import *  # noqa: F403
from sparsegrad.ops.sparse_structure import *  # noqa: F403
from sparsegrad.ops.special import *  # noqa: F403
from sparsegrad.ops.statistics import *  # noqa: F403
from sparsegrad.ops.tables import *  # noqa: F403
from sparsegrad.ops.transfer import *  # noqa: F403
from sparsegrad.ops.trigonometric import *  # noqa: F403
from sparsegrad.ops.unary import *  # noqa: F403
from sparsegrad.ops.window import *  # noqa: F403
from sparsegrad.policy import calibrate, should_use_sparse
from sparsegrad.profiler import profile
from sparsegrad.random import Generator, get_rng_state, manual_seed, set_rng_state
from sparsegrad.sampling import *  # noqa: F403
from sparsegrad.sparse_tensor import SparseTensor
from sparsegrad.structure import Pattern
from sparsegrad.tensor import Tensor

__version__ = "0.1.0"

device = Device  # PyTorch's name; `from sparsegrad.device import ...` finds the module as before
half, float, double = float16, float32, float64
short, int, long = int16, int32, int64

__all__ = [
    "Device",
    "Function",
    "Generator",
    "Pattern",
    "SparseTensor",
    "Tensor",
    "amp",
    "autograd",
    "bool",
    "calibrate",
    "checkpoint",
    "complex128",
    "complex64",
    "config",
    "cuda",
    "data",
    "densify",
    "detect_anomaly",
    "device",
    "double",
    "enable_grad",
    "finfo",
    "float",
    "float16",
    "float32",
    "float64",
    "get_default_dtype",
    "get_num_threads",
    "get_rng_state",
    "grad",
    "gradcheck",
    "gradgradcheck",
    "half",
    "iinfo",
    "int",
    "int16",
    "int32",
    "int64",
    "int8",
    "interop",
    "io",
    "is_anomaly_check_nan_enabled",
    "is_anomaly_enabled",
    "is_grad_enabled",
    "linalg",
    "long",
    "manual_seed",
    "nn",
    "no_grad",
    "optim",
    "policy",
    "profile",
    "promote_types",
    "result_type",
    "set_default_dtype",
    "set_detect_anomaly",
    "set_grad_enabled",
    "set_num_threads",
    "set_rng_state",
    "short",
    "should_use_sparse",
    "uint8",
]
__all__ += create.__all__
__all__ += errors.__all__
__all__ += io.__all__
__all__ += sampling.__all__
__all__ += [name for family in ops.FAMILIES for name in family.__all__]
globals().update({name: getattr(ops, name) for family in ops.FAMILIES for name in family.__all__})

if typing.TYPE_CHECKING:
    from numpy import dtype as _dtype

    bfloat16: _dtype
else:
    _ELSEWHERE = {  # names of PyTorch and SciPy, and what they are here
        "bmat": "sg.block_array",
        "diags_array": "sg.sparse_diags",
        "eye_array": "sg.sparse_eye",
        "find": "A.coalesce(), its row, col and values",
        "func": "sg.autograd",
        "hspmm": "A @ x",
        "inference_mode": "sg.no_grad",
        "issparse": "x.is_sparse",
        "pca_lowrank": "sg.svd_lowrank",
        "random_array": "sg.random_sparse",
        "smm": "A @ x",
        "sparse": "sg.coo and sg.mm, or the methods of a SparseTensor",
        "sparse_coo_tensor": "sg.coo(indices, values, shape)",
        "sparse_csc_tensor": "sg.csc(indptr, indices, values, shape)",
        "sparse_csr_tensor": "sg.csr(indptr, indices, values, shape)",
        "spdiags": "sg.sparse_diags",
        "sspaddmm": "sg.addmm(C, A, x)",
        "utils": "sg.data, sg.checkpoint",
    }

    def __getattr__(name):  # what an extra brings, which may not be installed
        if name == "bfloat16":
            return dtypes.bfloat16
        said = f"module 'sparsegrad' has no attribute {name!r}"
        if name in _ELSEWHERE:
            raise AttributeError(f"{said}; see {_ELSEWHERE[name]}")
        # With name and obj, Python answers "Did you mean: ...?".
        raise AttributeError(said, name=name, obj=sys.modules[__name__])
