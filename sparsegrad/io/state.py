"""State of models and optimizers in `.safetensors` files, sparse tensors included.

A file is plain safetensors, which any reader of that format opens; nothing in it can run code.
A dense tensor `N` is stored under its name. A sparse one takes several:

    N.values    (nnz, *dense dims)
    N.indices   coo: (sparse dims, nnz); csr: columns (nnz,); csc: rows (nnz,)
    N.indptr    csr, csc: offsets (n + 1,)

and the header's metadata has, under the key "sparsegrad", a JSON object:

    version   1
    sparse    {N: {"format": "coo" | "csr" | "csc", "shape": sizes of the sparse dimensions}}
    complex   names of complex128 tensors, stored as float64 with a last dimension of 2
    names     the tensors of a flat dictionary, in its order; or
    tree      where the state is not one (that of an optimizer): nested
              {"dict": [[key, node], ...]}, {"list": [...]}, {"tuple": [...]}, {"value": JSON},
              {"tensor": name}

Files without that key load as a dictionary of dense tensors.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from sparsegrad.errors import SparsegradError
from sparsegrad.io.files import FileError, replaced
from sparsegrad.sparse_tensor import SparseTensor, compressed
from sparsegrad.tensor import Tensor

__all__ = ["load", "save"]

_MALFORMED = (AttributeError, KeyError, TypeError, ValueError, OSError, MemoryError)
_KEY, _VERSION = "sparsegrad", 1
_PARTS = {
    "coo": ("values", "indices"),
    "csr": ("values", "indices", "indptr"),
    "csc": ("values", "indices", "indptr"),
}


def save(state: Any, path: Any, metadata: Mapping[str, str] | None = None) -> None:
    """Write a `state_dict` to a `.safetensors` file (needs the extra `io`).

    state: dictionary from names to Tensors, SparseTensors or arrays; or any nesting of
        dictionaries, lists and tuples of those and of numbers, strings, booleans and None.
    path: replaced only when all is written.
    metadata: texts to store with it.

    Values, patterns, order of entries and duplicates are kept; gradients are not stored. Raises
    TypeError for what is none of these, ValueError for two tensors that would take one name.

    >>> import sparsegrad as sg, tempfile, os
    >>> path = os.path.join(tempfile.mkdtemp(), "model.safetensors")
    >>> sg.save({"A": sg.coo([[0], [1]], [5.0], (2, 2)), "b": sg.ones(2)}, path)
    >>> sg.load(path)["A"].to_dense()
    tensor([[0., 5.],
            [0., 0.]])
    """
    serialize = _safetensors("save").numpy.save
    writer = _Writer()
    if isinstance(state, Mapping) and all(
        isinstance(k, str) and _is_tensor(v) for k, v in state.items()
    ):
        for name, tensor in state.items():
            writer.tensor(name, tensor)
        layout: dict[str, Any] = {"names": list(state)}
    else:
        layout = {"tree": writer.node("", state)}
    header = {"version": _VERSION, "sparse": writer.sparse, "complex": writer.complex, **layout}
    texts = {**(metadata or {}), _KEY: json.dumps(header, separators=(",", ":"))}
    with replaced(path, compress=False) as file:
        file.write(serialize(writer.arrays, texts))


def load(path: Any) -> Any:
    """Read what `save` wrote: the same nesting, with leaves that require no gradient.

    Other `.safetensors` files give a dictionary of dense tensors. Indices are checked, and nothing
    in the file is executed. Raises FileError for anything malformed.

    >>> import tempfile
    >>> import sparsegrad as sg
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     sg.save({"w": sg.ones(2)}, f"{folder}/w.safetensors")
    ...     sg.load(f"{folder}/w.safetensors")
    {'w': tensor([1., 1.])}
    """
    package = _safetensors("load")
    path = os.fspath(path)
    if not os.path.exists(path):
        raise FileNotFoundError(f"load: no file {path!r}")
    try:
        with package.safe_open(path, framework="np") as file:
            texts = file.metadata() or {}
            arrays = {name: np.array(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118
    except (package.SafetensorError, *_MALFORMED) as error:
        raise FileError(f"load: {path}: {str(error) or type(error).__name__}") from error
    if _KEY not in texts:
        return {name: _tensor(path, name, array) for name, array in arrays.items()}
    try:
        header = json.loads(texts[_KEY])
        if header["version"] != _VERSION:
            raise FileError(f"load: {path}: version {header['version']!r} is not known")
        return _Reader(path, arrays, header).state(header.get("tree"))
    except FileError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise FileError(f"load: {path}: its metadata is malformed ({error!r})") from error


def _safetensors(op: str) -> Any:
    try:
        import safetensors
        import safetensors.numpy
    except ImportError:
        raise ImportError(
            f"{op}: needs safetensors; install it with pip install 'sparsegrad-engine[io]'"
        ) from None
    return safetensors


def _is_tensor(x: Any) -> bool:
    return isinstance(x, (Tensor, SparseTensor, np.ndarray))


class _Writer:
    def __init__(self) -> None:
        self.arrays: dict[str, np.ndarray] = {}
        self.sparse: dict[str, Any] = {}
        self.complex: list[str] = []

    def node(self, name: str, x: Any) -> dict[str, Any]:
        """The part of the tree that `x` is; its tensors are named after their place."""
        lead = f"{name}." if name else ""
        if _is_tensor(x):
            self.tensor(name or "tensor", x)
            return {"tensor": name or "tensor"}
        if isinstance(x, Mapping):
            return {"dict": [[_plain(name, k), self.node(f"{lead}{k}", v)] for k, v in x.items()]}
        if isinstance(x, (list, tuple)):
            kind = "list" if isinstance(x, list) else "tuple"
            return {kind: [self.node(f"{lead}{i}", v) for i, v in enumerate(x)]}
        return {"value": _plain(name, x)}

    def tensor(self, name: str, x: Any) -> None:
        if not isinstance(x, SparseTensor):
            self.array(name, x.detach().numpy() if isinstance(x, Tensor) else x)
            return
        host = x.pattern.core.backend.to_host
        self.array(f"{name}.values", x.values.detach().numpy())
        if x.format == "coo":
            self.array(f"{name}.indices", np.stack([host(c) for c in x.pattern.coords]))
        else:
            self.array(f"{name}.indices", host(x.indices))
            self.array(f"{name}.indptr", host(x.indptr))
        self.sparse[name] = {"format": x.format, "shape": list(x.pattern.shape)}

    def array(self, name: str, array: np.ndarray) -> None:
        if name in self.arrays:
            raise ValueError(f"save: two tensors would be stored under the name {name!r}")
        if array.dtype == np.complex128:
            self.complex.append(name)
            array = np.ascontiguousarray(array)[..., None].view(np.float64)
        # A copy: memory that tensors share is stored for each, and a view of nothing is whole.
        self.arrays[name] = np.array(array, order="C", dtype=array.dtype.newbyteorder("="))


def _plain(name: str, x: Any) -> Any:
    if isinstance(x, np.generic):
        x = x.item()
    if x is None or isinstance(x, (bool, int, float, str)):
        return x
    raise TypeError(f"save: {name or 'state'}: cannot store a {type(x).__name__}")


class _Reader:
    def __init__(self, path: str, arrays: dict[str, np.ndarray], header: dict[str, Any]) -> None:
        self.path, self.arrays, self.sparse = path, arrays, header["sparse"]
        self.names = header.get("names", [])
        for name in header.get("complex", []):
            array = self.array(name)
            if array.dtype != np.float64 or array.shape[-1:] != (2,):
                raise FileError(f"load: {path}: {name} is no complex tensor")
            arrays[name] = array.view(np.complex128)[..., 0]

    def state(self, tree: Any) -> Any:
        if tree is not None:
            return self.node(tree)
        return {name: self.tensor(name) for name in self.names}

    def node(self, tree: Any) -> Any:
        (kind, held), *rest = tree.items()
        if rest:
            raise FileError(f"load: {self.path}: its metadata is malformed")
        if kind == "tensor":
            return self.tensor(held)
        if kind == "dict":
            return {key: self.node(value) for key, value in held}
        if kind in ("list", "tuple"):
            items = [self.node(value) for value in held]
            return items if kind == "list" else tuple(items)
        if kind == "value":
            return held
        raise FileError(f"load: {self.path}: unknown node {kind!r} in its metadata")

    def array(self, name: str) -> np.ndarray:
        if name not in self.arrays:
            raise FileError(f"load: {self.path}: tensor {name!r} is missing")
        return self.arrays[name]

    def tensor(self, name: str) -> Any:
        if name not in self.sparse:
            return _tensor(self.path, name, self.array(name))
        facts = self.sparse[name]
        values, indices, *indptr = (self.array(f"{name}.{part}") for part in _parts(facts))
        shape = (*(int(n) for n in facts["shape"]), *values.shape[1:])
        try:
            if facts["format"] == "coo":
                return SparseTensor(list(indices), values, shape, copy=False)
            return compressed(facts["format"], indptr[0], indices, values, shape, copy=False)
        except SparsegradError as error:
            raise FileError(f"load: {self.path}: {name}: {error}") from error


def _parts(facts: dict[str, Any]) -> tuple[str, ...]:
    return _PARTS[facts["format"]]


def _tensor(path: str, name: str, array: np.ndarray) -> Tensor:
    try:
        return Tensor(array)
    except SparsegradError as error:
        raise FileError(f"load: {path}: {name}: {error}") from error
