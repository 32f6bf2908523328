"""Ops, one family a file; forward and gradient rules stand together."""

from sparsegrad.ops import (
    activations,
    aliases,
    arrangements,
    attention,
    bias,
    binary,
    blocks,
    comparisons,
    composite,
    contract,
    dense_matmul,
    elementwise,
    fused,
    index,
    likelihood,
    lowrank,
    normalization,
    pooling,
    quantiles,
    questions,
    rearrange,
    rectifiers,
    reduce,
    resize,
    scan,
    scatter_runs,
    scattering,
    segment,
    shape,
    softmaxes,
    sorting,
    sparse_diagonal,
    sparse_elementwise,
    sparse_graph,
    sparse_index,
    sparse_matmul,
    sparse_product,
    sparse_prune,
    sparse_reduce,
    sparse_shape,
    sparse_solve,
    sparse_structure,
    special,
    spmm_reduce,
    statistics,
    tables,
    transfer,
    trigonometric,
    unary,
    window,
)
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
from sparsegrad.ops.naming import with_numpy_names
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

FAMILIES = (
    activations,
    aliases,
    arrangements,
    attention,
    bias,
    binary,
    blocks,
    comparisons,
    composite,
    contract,
    dense_matmul,
    elementwise,
    fused,
    index,
    likelihood,
    lowrank,
    normalization,
    pooling,
    quantiles,
    questions,
    rearrange,
    rectifiers,
    reduce,
    resize,
    scan,
    scatter_runs,
    scattering,
    segment,
    shape,
    softmaxes,
    sorting,
    sparse_diagonal,
    sparse_elementwise,
    sparse_graph,
    sparse_index,
    sparse_matmul,
    sparse_product,
    sparse_prune,
    sparse_reduce,
    sparse_shape,
    sparse_solve,
    sparse_structure,
    special,
    spmm_reduce,
    statistics,
    tables,
    transfer,
    trigonometric,
    unary,
    window,
)

globals().update(with_numpy_names(FAMILIES, __name__))
