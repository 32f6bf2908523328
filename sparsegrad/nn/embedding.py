"""Tables of rows that are looked up by number; their gradients store only the rows looked up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from sparsegrad import backends, create, ops
from sparsegrad.engine.mode import no_grad
from sparsegrad.errors import PatternError, ShapeError
from sparsegrad.nn import init
from sparsegrad.nn.containers import ModuleList
from sparsegrad.nn.module import Module
from sparsegrad.nn.parameter import Parameter
from sparsegrad.ops.segment import segment_amax_p, segment_sum_p
from sparsegrad.tensor import Tensor, as_tensor

__all__ = ["Embedding", "EmbeddingBag", "EmbeddingCollection"]


class _Table(Module):
    """What both have: the weight, its first values, the padding row, the limit of row norms."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None,
        max_norm: float | None,
        norm_type: float,
        sparse: bool,
        dtype: Any,
    ) -> None:
        super().__init__()
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ValueError(
                f"{self._name}: padding_idx {padding_idx} is outside the {num_embeddings} rows"
            )
        if max_norm is not None and not (max_norm > 0 and norm_type > 0):
            raise ValueError(
                f"{self._name}: max_norm and norm_type must be > 0, got {max_norm} and {norm_type}"
            )
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
        self.max_norm, self.norm_type, self.sparse = max_norm, norm_type, sparse
        self.weight = Parameter(create.empty(num_embeddings, embedding_dim, dtype=dtype))
        self.reset_parameters()

    @classmethod
    def from_pretrained(cls, embeddings: Any, freeze: bool = True, **options: Any) -> Any:
        """A layer with this weight (V, d); it shares the memory of one that can be written.

        freeze: it is not trained. options: those of the class, by name.

        Raises ShapeError for a weight that is not (V, d).

        >>> import sparsegrad as sg
        >>> table = sg.nn.Embedding.from_pretrained([[1.0, 2.0], [3.0, 4.0]])
        >>> table(sg.tensor([1])), table.weight.requires_grad
        (tensor([[3., 4.]]), False)
        """
        weight = Parameter(embeddings, requires_grad=not freeze)
        if weight.ndim != 2:
            raise ShapeError(f"{cls.__name__}: expected embeddings (V, d), got {weight.shape}")
        rows, width = weight.shape
        out = cls(rows, width, **options)
        out.weight = weight
        return out

    @property
    def _name(self) -> str:
        return type(self).__name__

    def reset_parameters(self) -> None:
        """Draw all rows anew; the padding row is zero."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            with no_grad():
                self.weight[self.padding_idx] = 0

    def _rows(self, index: Any) -> Tensor:
        """Rows of any index (*B) -> (*B, d)."""
        if self.max_norm is not None:
            self._limit(index)
        return ops.embedding(self.weight, index, self.padding_idx, self.sparse)

    def _limit(self, index: Any) -> None:
        """Scale the rows that are looked up down to `max_norm`, in place."""
        data = self.weight.data
        be = backends.for_array(data)
        ids = be.xp.unique(be.asarray(index.data if isinstance(index, Tensor) else index))
        be.check_indices(f"{self._name}: index", ids.astype("int64"), len(data), later=False)
        rows = data[ids]
        norms = (abs(rows) ** self.norm_type).sum(axis=1, keepdims=True) ** (1 / self.norm_type)
        if bool((norms > self.max_norm).any()):
            scale = be.xp.minimum(self.max_norm / (norms + 1e-7), 1)
            data[ids] = be.xp.where(norms > self.max_norm, rows * scale, rows)
            self.weight._bump()

    def extra_repr(self) -> str:
        parts = [f"{self.num_embeddings}, {self.embedding_dim}"]
        for name in ("padding_idx", "max_norm"):
            if getattr(self, name) is not None:
                parts.append(f"{name}={getattr(self, name)}")
        return ", ".join(parts)


class Embedding(_Table):
    """Rows of a weight (V, d) by integer index (*B) -> (*B, d).

    padding_idx: a row that starts as zero and gets no gradient; negative counts from the end.
    max_norm, norm_type: rows that are looked up are scaled down to this norm first, in place.
    sparse: the gradient of the weight is a row-sparse SparseTensor; False gives a dense one.

    The weight starts normal (mean 0, deviation 1), as in PyTorch.

    Raises PatternError for an index outside [0, V), ValueError for arguments out of range.

    >>> import sparsegrad as sg
    >>> table = sg.nn.Embedding(250_002, 4)
    >>> table(sg.tensor([[7, 1], [7, 7]])).sum().backward()
    >>> table.weight.grad.shape, table.weight.grad.coalesce().nnz
    ((250002, 4), 2)
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        sparse: bool = True,
        dtype: Any = None,
    ) -> None:
        super().__init__(
            *(num_embeddings, embedding_dim, padding_idx, max_norm, norm_type, sparse, dtype)
        )

    def forward(self, index: Any) -> Tensor:
        """Integers (*B) -> (*B, d)."""
        return self._rows(index)


class EmbeddingCollection(Module):
    """Rows of several tables, one for each column of an index, side by side: (*B, F) -> (*B, sum of
    d_f), in one pass over all tables: `sg.embedding_collection`.

    tables: (num_embeddings, embedding_dim) of each of the F tables, of any widths; they lie in
        `embeddings`, a list of `Embedding`.
    sparse: gradients are row-sparse SparseTensors; False gives dense ones.

    Raises ValueError for no tables, and what the op does.

    >>> import sparsegrad as sg
    >>> tables = sg.nn.EmbeddingCollection([(1000, 4), (50, 4), (7, 2)])
    >>> out = tables(sg.tensor([[3, 49, 0], [999, 4, 6]]))  # the ids of two samples
    >>> out.shape
    (2, 10)
    >>> out.sum().backward()
    >>> tables.embeddings[0].weight.grad.row
    array([  3, 999], dtype=int32)
    """

    def __init__(
        self, tables: Iterable[tuple[int, int]], sparse: bool = True, dtype: Any = None
    ) -> None:
        super().__init__()
        self.sparse = sparse
        self.embeddings = ModuleList(
            Embedding(rows, width, sparse=sparse, dtype=dtype) for rows, width in tables
        )
        if not len(self.embeddings):
            raise ValueError("EmbeddingCollection: expected at least one table")

    def reset_parameters(self) -> None:
        """Draw all rows of all tables anew."""
        for table in self.embeddings:
            table.reset_parameters()

    def forward(self, index: Any) -> Tensor:
        """Integers (*B, F) -> (*B, sum of d_f)."""
        weights = [table.weight for table in self.embeddings]
        return ops.embedding_collection(weights, index, self.sparse)


class EmbeddingBag(_Table):
    """Sums, means or maxima of rows of a weight (V, d), one a bag: (b, d).

    Bags are the rows of an index (b, l), or the runs index[offsets[i]:offsets[i + 1]] of an index
    (e,): offsets (b,) says where each starts, the last one ends at e. With `include_last_offset`
    offsets (b + 1,) say that too.

    mode: "sum", "mean" or "max". An empty bag gives zeros. per_sample_weights (of the index's
        shape, for "sum" only) are factors of the rows, and get a gradient if they require one.
    padding_idx: entries that are left out of the bag; the row starts as zero.
    max_norm, norm_type, sparse: as for `Embedding`.

    Raises ShapeError for sizes that do not fit, PatternError for an index outside [0, V) or
    offsets that do not rise from 0, ValueError for arguments out of range.

    >>> import sparsegrad as sg
    >>> bag = sg.nn.EmbeddingBag(10, 3, mode="sum")
    >>> bag(sg.tensor([1, 2, 4, 5]), offsets=sg.tensor([0, 3])).shape
    (2, 3)
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        mode: str = "mean",
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        sparse: bool = True,
        include_last_offset: bool = False,
        dtype: Any = None,
    ) -> None:
        if mode not in ("sum", "mean", "max"):
            raise ValueError(f"EmbeddingBag: mode must be 'sum', 'mean' or 'max', got {mode!r}")
        super().__init__(
            *(num_embeddings, embedding_dim, padding_idx, max_norm, norm_type, sparse, dtype)
        )
        self.mode, self.include_last_offset = mode, include_last_offset

    def forward(self, index: Any, offsets: Any = None, per_sample_weights: Any = None) -> Tensor:
        """index (b, l), or index (e,) with offsets (b,) -> (b, d)."""
        index = as_tensor(index)
        weights = None if per_sample_weights is None else as_tensor(per_sample_weights)
        if weights is not None and self.mode != "sum":
            raise ValueError(
                f"EmbeddingBag: per_sample_weights need mode='sum', this one has {self.mode!r}"
            )
        if weights is not None and weights.shape != index.shape:
            raise ShapeError(
                f"EmbeddingBag: expected per_sample_weights {index.shape}, got {weights.shape}"
            )
        indptr = self._bags(index, offsets)
        flat = ops.reshape(index, (-1,))
        if weights is not None:
            weights = ops.reshape(weights, (-1,))
        if self.padding_idx is not None:
            flat, weights, indptr = self._without_padding(flat, weights, indptr)
        rows = self._rows(flat)
        if weights is not None:
            rows = rows * ops.unsqueeze(weights, 1)
        xp = backends.for_array(rows.data).xp
        counts = xp.diff(indptr)
        if self.mode == "max":
            return segment_amax_p(rows, indptr=indptr, absent=xp.zeros_like(counts))
        total = segment_sum_p(rows, indptr=indptr)
        if self.mode == "sum":
            return total
        return total / Tensor(xp.maximum(counts, 1).astype(rows.dtype).reshape(-1, 1))

    def _bags(self, index: Tensor, offsets: Any) -> Any:
        """Where bags start and end, (b + 1,)."""
        be = backends.for_array(self.weight.data)
        if index.ndim == 2:
            if offsets is not None:
                raise ShapeError("EmbeddingBag: an index (b, l) has its bags already; got offsets")
            bags, size = index.shape
            return be.xp.arange(bags + 1, dtype="int64") * size
        if index.ndim != 1 or offsets is None:
            raise ShapeError(
                f"EmbeddingBag: expected index (b, l), or (e,) with offsets; got {index.shape}"
            )
        starts = as_tensor(offsets)
        if starts.ndim != 1 or (len(starts) and starts.dtype.kind not in "iu"):
            raise ShapeError(
                f"EmbeddingBag: expected offsets (b,), integers, got {starts.shape}, {starts.dtype}"
            )
        indptr = starts.cpu().data.astype("int64")
        if not self.include_last_offset:
            indptr = np.append(indptr, len(index))
        if len(starts) == 0 or [*indptr[[0, -1]]] != [0, len(index)] or (np.diff(indptr) < 0).any():
            raise PatternError(
                f"EmbeddingBag: offsets must rise from 0 to "
                f"{'' if self.include_last_offset else 'at most '}{len(index)}, got "
                f"{starts.tolist()[:8]}"
            )
        return be.asarray(indptr)

    def _without_padding(
        self, flat: Tensor, weights: Tensor | None, indptr: Any
    ) -> tuple[Tensor, Tensor | None, Any]:
        be = backends.for_array(self.weight.data)
        kept = be.asarray(flat.data) != self.padding_idx
        before = be.xp.concatenate((be.xp.zeros(1, "int64"), be.xp.cumsum(kept, dtype="int64")))
        places = be.xp.flatnonzero(kept)
        if weights is not None:
            weights = ops.take(weights, Tensor(places), sparse_grad=False)
        return Tensor(be.asarray(flat.data)[places]), weights, before[indptr]

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, mode={self.mode!r}"
