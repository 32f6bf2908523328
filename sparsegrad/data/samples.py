"""Rows of tensors as a data set, and batches of samples of any kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sparsegrad import ops
from sparsegrad.sparse_tensor import SparseTensor
from sparsegrad.tensor import Tensor

__all__ = ["TensorDataset", "default_collate"]


class TensorDataset:
    """Rows of tensors (n, ...), dense or sparse, that belong together: dataset[i] is a tuple of
    the i-th rows, and `batch(ids)` of whole batches, taken at once.

    Raises ValueError unless all have n rows.

    >>> import sparsegrad as sg
    >>> dataset = sg.data.TensorDataset(sg.sparse_eye(3, format="csr"), sg.tensor([5, 6, 7]))
    >>> x, y = dataset.batch([0, 2])
    >>> x.shape, y
    ((2, 3), tensor([5, 7]))
    """

    def __init__(self, *tensors: Any) -> None:
        if not tensors:
            raise ValueError("TensorDataset: expected at least one tensor")
        sizes = [t.shape[0] for t in tensors]
        if len(set(sizes)) > 1:
            raise ValueError(f"TensorDataset: tensors have different numbers of rows: {sizes}")
        self.tensors = tensors

    def __len__(self) -> int:
        return int(self.tensors[0].shape[0])

    def __getitem__(self, i: Any) -> tuple[Any, ...]:
        return tuple(t[i] for t in self.tensors)

    def batch(self, ids: Any) -> tuple[Any, ...]:
        """The rows `ids`, of every tensor."""
        return self[np.asarray(ids)]


def default_collate(samples: Sequence[Any]) -> Any:
    """A batch of samples that look alike: numbers become a tensor (b,), arrays and tensors of one
    shape are stacked (b, ...), SparseTensors to a COO tensor of one more dimension; tuples, lists
    and dictionaries are gone into; strings stay a list.

    Raises TypeError for other types, ShapeError for different shapes.

    >>> import sparsegrad as sg
    >>> x, y = sg.data.default_collate([(sg.ones(2), 3), (sg.zeros(2), 4)])
    >>> x.shape, y
    ((2, 2), tensor([3, 4]))
    """
    first = samples[0]
    if isinstance(first, SparseTensor):
        return ops.stack([A.to("coo") for A in samples])
    if isinstance(first, Tensor):
        return ops.stack(list(samples))
    if isinstance(first, (str, bytes)):
        return list(samples)
    if isinstance(first, (bool, int, float, np.number, np.bool_)):
        return Tensor(list(samples))
    if isinstance(first, np.ndarray):
        return ops.stack([Tensor(a) for a in samples])
    if isinstance(first, Mapping):
        return {key: default_collate([sample[key] for sample in samples]) for key in first}
    if isinstance(first, (tuple, list)):
        parts = [default_collate(list(part)) for part in zip(*samples, strict=True)]
        if hasattr(first, "_fields"):
            return type(first)(*parts)
        return type(first)(parts)
    raise TypeError(
        f"default_collate: cannot make a batch of {type(first).__name__}; give a `collate_fn`"
    )
