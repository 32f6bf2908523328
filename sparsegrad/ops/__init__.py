"""Ops, one family a file; forward and gradient rules stand together."""

from sparsegrad.ops import (
    elementwise,
    index,
    reduce,
    segment,
    shape,
    sparse_elementwise,
    sparse_matmul,
    sparse_reduce,
    sparse_structure,
)
from sparsegrad.ops import (
    matmul as _matmul,
)
from sparsegrad.ops.elementwise import *  # noqa: F403
from sparsegrad.ops.index import *  # noqa: F403
from sparsegrad.ops.matmul import *  # noqa: F403
from sparsegrad.ops.reduce import *  # noqa: F403
from sparsegrad.ops.segment import *  # noqa: F403
from sparsegrad.ops.shape import *  # noqa: F403
from sparsegrad.ops.sparse_elementwise import *  # noqa: F403
from sparsegrad.ops.sparse_matmul import *  # noqa: F403
from sparsegrad.ops.sparse_reduce import *  # noqa: F403
from sparsegrad.ops.sparse_structure import *  # noqa: F403

__all__: list[str] = []
__all__ += elementwise.__all__
__all__ += index.__all__
__all__ += _matmul.__all__
__all__ += reduce.__all__
__all__ += segment.__all__
__all__ += shape.__all__
__all__ += sparse_elementwise.__all__
__all__ += sparse_matmul.__all__
__all__ += sparse_reduce.__all__
__all__ += sparse_structure.__all__
