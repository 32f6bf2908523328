"""Reading and writing: files, and objects of other libraries.

    save, load              models and optimizers, as .safetensors
    save_npz, load_npz      one sparse tensor, SciPy's .npz
    mmread, mmwrite         Matrix Market
    read_edges, write_edges edge lists
    from_networkx, to_networkx, from_torch, to_torch

Reading never executes anything of a file, and always checks it.
"""

from __future__ import annotations

from sparsegrad.io.edges import read_edges, write_edges
from sparsegrad.io.files import FileError
from sparsegrad.io.interchange import from_networkx, from_torch, to_networkx, to_torch
from sparsegrad.io.matrix_market import mmread, mmwrite
from sparsegrad.io.npz import load_npz, save_npz
from sparsegrad.io.state import load, save

__all__ = [
    "FileError",
    "from_networkx",
    "from_torch",
    "load",
    "load_npz",
    "mmread",
    "mmwrite",
    "read_edges",
    "save",
    "save_npz",
    "to_networkx",
    "to_torch",
    "write_edges",
]
