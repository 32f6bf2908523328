"""The files that the authors of Planetoid published: pickles, read without executing anything."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from sparsegrad.data.fetch import Remote, fetch
from sparsegrad.data.files import find, local, malformed
from sparsegrad.data.graph import DataError

__all__ = ["original"]

_SITE = "https://github.com/kimiyoung/planetoid/raw/master/data/"
_PARTS = ("x", "y", "tx", "ty", "allx", "ally", "graph", "test.index")
_SHA256 = {
    "citeseer": {
        "x": "d20de19150741e555de0ed037195630fc194114ebc7fd72ced62810148aa22f6",
        "y": "8ba87e515d8e3ee3cf52f6d2c5b86aa73f11ecad825a808455209ec26cd54924",
        "tx": "539a8906a2da97628d212f2fdd668c109a8b3f0d36574b59e5d3fd5b5303da21",
        "ty": "55e5bd1ba1e733a04598753ad1a8d57957f4b8f89e74519f41f4f4938767e4ce",
        "allx": "2ac30345d95c9ec933a817ee0bdd6a5f077f8c184a20e696910192d534414668",
        "ally": "f704b2d986dde6c2669934de1f3ae5696a6cf9455c0f6b2646a2d135ea0a1c95",
        "graph": "d79a4ef9d3e7169aee8946145f6b7306e35bc79bffad26346cfb94e10e9912a7",
        "test.index": "2af990671580b6b2df5d158d1038f8292e30c9cd821b5453f399659b25b723d4",
    },
    "pubmed": {
        "x": "fbe9cb5c47200d1b7769a26e579be3b7130b556831f9d850e77c4c74f2599b33",
        "y": "e6c807633307a07ed659249006536a147c7999c797f11a2560752990181b41b3",
        "tx": "4eb5f5d0f30f26497eb0ac6ac9719d09c67e284f1ed0385c93f3ef27a671da3d",
        "ty": "ee2e0d4819d9fbcc403689c3bf2e49face401b605932f093bc58ab6461130fdd",
        "allx": "508e538e2abdccdd54c4d3e9f49d638b4af7107d85845f66ddea5a5152658b7e",
        "ally": "0c37bbe3b5014ec365e9d393cf4791925e5ed94fb194305d74f064a8d7b50f0e",
        "graph": "5b89f0036ca22909471f1e6558eb42fa06e0c730a577bde5b058b40638f81dc9",
        "test.index": "b101d421688bbaecbd82e8a18f1e282378d6830f3a37666f28ebc47f844341b5",
    },
}


def original(name: str, folder: str | os.PathLike[str] | None) -> tuple[Path, dict[str, Any]]:
    """The arrays of planetoid/<name>.npz, made of eight files ind.<name>.x, ..., and the last of
    their paths."""
    path = {part: _path(name, part, folder) for part in _PARTS}
    part = {key: _unpickled(path[key]) for key in _PARTS[:-1]}
    where = path["test.index"]
    with malformed("planetoid", f"{where} or a file beside it"):
        return where, _arrays(part, np.array(where.read_text(encoding="ascii").split(), np.int64))


def _path(name: str, part: str, folder: str | os.PathLike[str] | None) -> Path:
    file = f"ind.{name}.{part}"
    found = local(f"planetoid/{file}", folder) or local(file, folder)
    if found is not None:
        return found
    if name in _SHA256:
        return fetch("planetoid", Remote(_SITE + file, _SHA256[name][part]), folder)
    otherwise = f"{_SITE}{file} and the files beside it; or use the generated data set 'sbm'"
    return find("planetoid", f"planetoid/{name}.npz", folder, otherwise)


def _arrays(part: dict[str, Any], test: np.ndarray) -> dict[str, Any]:
    """Rows of allx and, where `test` says, of tx; nodes that neither has are without features and
    class (CiteSeer has 15)."""
    allx, tx = part["allx"].csr(), part["tx"].csr()
    known, n = allx.shape[0], max(part["allx"].csr().shape[0], int(test.max()) + 1)
    order = np.full(n, known + len(test))  # an empty row below both
    order[:known] = np.arange(known)
    order[test] = known + np.arange(len(test))
    from scipy import sparse

    X = sparse.vstack((allx, tx, sparse.csr_array((1, allx.shape[1]), dtype=allx.dtype)))
    X = sparse.csr_array(X)[order]
    X.sort_indices()
    classes = np.concatenate((part["ally"], part["ty"], np.zeros_like(part["ty"][:1])))[order]
    u = np.repeat(list(part["graph"]), [len(ids) for ids in part["graph"].values()])
    v = np.concatenate([np.asarray(ids, np.int64) for ids in part["graph"].values()])
    return {
        "shape": np.array(X.shape),
        "x_indptr": X.indptr,
        "x_indices": X.indices,
        "x_data": X.data,
        "edge_u": u,
        "edge_v": v,
        "y": np.where(classes.any(1), classes.argmax(1), -1),
        "train_idx": np.arange(len(part["y"])),
        "test_idx": np.sort(test),
    }


# ---- pickles -----------------------------------------------------------------------------------
class _Matrix:
    """What a pickled scipy.sparse.csr_matrix is read as: nothing of SciPy runs."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.held = {key: state[key] for key in ("data", "indices", "indptr", "_shape")}

    def csr(self) -> Any:
        """The matrix, checked."""
        from scipy import sparse

        held = self.held
        A = sparse.csr_array((held["data"], held["indices"], held["indptr"]), held["_shape"])
        A.check_format(full_check=True)
        return A


def _reconstruct(_: Any, shape: Any, kind: Any) -> np.ndarray:
    """NumPy's, for arrays only."""
    return np.ndarray.__new__(np.ndarray, shape, kind)


class _Unpickler(pickle.Unpickler):
    """Knows arrays, CSR matrices, dictionaries and lists, and refuses everything else."""

    def find_class(self, module: str, name: str) -> Any:
        known = {
            ("numpy", "ndarray"): np.ndarray,
            ("numpy", "dtype"): np.dtype,
            ("multiarray", "_reconstruct"): _reconstruct,
            ("csr", "csr_matrix"): _Matrix,
            ("_csr", "csr_matrix"): _Matrix,
            ("collections", "defaultdict"): _dictionary,
            ("__builtin__", "list"): list,
            ("builtins", "list"): list,
            ("_codecs", "encode"): _encode,
        }
        inside = module.rpartition(".")[2]
        trusted = module.partition(".")[0] in ("numpy", "scipy", "collections", "_codecs")
        if (inside, name) not in known or not (
            trusted or inside.endswith(("builtin__", "builtins"))
        ):
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no data set needs")
        return known[inside, name]


def _dictionary(*_: Any) -> dict[Any, Any]:
    return {}


def _encode(text: str, encoding: str) -> bytes:
    """How Python 3 pickles bytes for Python 2."""
    return text.encode(encoding if encoding == "latin1" else "ascii")


def _unpickled(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            return _Unpickler(file, encoding="latin1").load()
    except (pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError, IndexError,
            KeyError, ImportError, MemoryError, OverflowError) as error:  # fmt: skip
        raise DataError(f"planetoid: {path} is not a file of this data set: {error}") from None
