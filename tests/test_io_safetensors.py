"""Files of tensors that `save` writes: safetensors."""

from __future__ import annotations

import json
import os
import pickle

import numpy as np
import pytest

import sparsegrad as sg
from files import matrix, same

pytest.importorskip("safetensors")


def state():
    return {
        "coo": matrix("coo"),
        "csr": matrix("csr", np.float32),
        "csc": matrix("csc"),
        "T": matrix("csr").T,
        "cube": sg.coo([[0, 1], [1, 0], [2, 2]], [1.0, 2.0], (2, 2, 3)),
        "hybrid": sg.csr([0, 1, 2], [1, 0], sg.randn(2, 3), (2, 2, 3)),
        "ones": sg.coo([[0, 1]], None, (3,)),
        "w": sg.randn(2, 3).half(),
        "flag": sg.tensor([True, False]),
        "steps": sg.tensor(7),
        "z": sg.tensor(np.array([1 + 2j])),
        "a.dotted.name": sg.randn(3).T,
        "none": sg.zeros(0, 4),
    }


def test_safetensors_of_every_kind(tmp_path):
    path = tmp_path / "model.safetensors"
    given = state()
    sg.save(given, path, metadata={"made by": "a test"})
    found = sg.load(path)
    assert list(found) == list(given)
    for name, tensor in given.items():
        assert type(found[name]) is type(tensor)
        if isinstance(tensor, sg.SparseTensor):
            assert same(found[name], tensor)
        else:
            assert found[name].dtype == tensor.dtype
            np.testing.assert_array_equal(found[name].data, tensor.data)
    assert os.listdir(tmp_path) == [path.name]


def test_safetensors_convention(tmp_path):
    from safetensors import safe_open
    from safetensors.numpy import load_file

    path = tmp_path / "m.safetensors"
    sg.save({"layer.A": matrix("csr"), "b": sg.ones(2)}, path)
    arrays = load_file(path)
    assert sorted(arrays) == ["b", "layer.A.indices", "layer.A.indptr", "layer.A.values"]
    np.testing.assert_array_equal(arrays["layer.A.indptr"], matrix("csr").indptr)
    with safe_open(path, framework="np") as file:
        header = json.loads(file.metadata()["sparsegrad"])
    assert header["sparse"] == {"layer.A": {"format": "csr", "shape": [5, 4]}}


def test_safetensors_of_others_are_dense_tensors(tmp_path):
    from safetensors.numpy import save_file

    save_file({"x": np.ones(3, np.float32)}, tmp_path / "x.safetensors")
    assert sg.load(tmp_path / "x.safetensors")["x"].tolist() == [1.0, 1.0, 1.0]


def test_safetensors_of_a_model_and_its_optimizer(tmp_path):
    class Model(sg.nn.Module):
        def __init__(self):
            super().__init__()
            self.A = sg.nn.Parameter(matrix("csr", np.float32).coalesce())
            self.linear = sg.nn.Linear(3, 2)

        def forward(self, x):
            return self.linear(self.A @ x)

    def step(model, optimizer):
        optimizer.zero_grad()
        (model(sg.ones(4, 3)) ** 2).sum().backward()
        optimizer.step()

    model = Model()
    optimizer = sg.optim.Adam(model.parameters(), lr=0.1)
    step(model, optimizer)
    sg.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "c")
    other = Model()
    again = sg.optim.Adam(other.parameters(), lr=0.5)
    held = sg.load(tmp_path / "c")
    other.load_state_dict(held["model"])
    again.load_state_dict(held["optimizer"])
    for _ in range(2):
        step(model, optimizer)
        step(other, again)
    for ours, theirs in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
        ours, theirs = (getattr(t, "values", t) for t in (ours, theirs))
        np.testing.assert_array_equal(ours.data, theirs.data)


def test_safetensors_nesting(tmp_path):
    path = tmp_path / "s"
    given = {"a": [1, 2.5, None, ("x", True)], 7: {"A": matrix("csr")}, "np": np.float32(2)}
    sg.save(given, path)
    found = sg.load(path)
    assert found["a"] == [1, 2.5, None, ("x", True)]
    assert same(found[7]["A"], matrix("csr"))
    assert found["np"] == 2.0
    sg.save(sg.ones(2), path)
    assert sg.load(path).tolist() == [1.0, 1.0]


def test_safetensors_refusals(tmp_path):
    path = tmp_path / "s.safetensors"
    sg.save({"x": sg.ones(1)}, path)
    before = path.read_bytes()
    with pytest.raises(TypeError, match="f: cannot store a builtin_function"):
        sg.save({"f": print}, path)
    with pytest.raises(ValueError, match=r"name 'A\.values'"):
        sg.save({"A": matrix(), "A.values": sg.ones(2)}, path)
    assert path.read_bytes() == before
    with pytest.raises(FileNotFoundError):
        sg.load(tmp_path / "absent")


def damaged_safetensors():
    """Headers that a stranger could write."""
    from safetensors.numpy import save

    A = matrix("csr")
    parts = {"A.values": A.values.data, "A.indices": A.indices, "A.indptr": A.indptr}
    header = {"version": 1, "sparse": {"A": {"format": "csr", "shape": [5, 4]}}, "names": ["A"]}

    def made(arrays=parts, **changes):
        text = json.dumps({k: v for k, v in (header | changes).items() if v is not None})
        return save(arrays, {"sparsegrad": text})

    yield made()[:50]
    yield b""
    yield pickle.dumps({"x": 1})
    yield (2**62).to_bytes(8, "little") + b"{}"
    yield save(parts, {"sparsegrad": "no json"})
    yield save(parts, {"sparsegrad": "[" * 100_000})
    yield made(version=2)
    yield made(version=None)
    yield made(sparse=None)
    yield made(names=["B"])
    yield made(names=[["A"]])
    yield made(sparse={"A": {"format": "ell", "shape": [5, 4]}})
    yield made(sparse={"A": {"format": "csr", "shape": [5, 2]}})
    yield made(sparse={"A": {"format": "csr", "shape": [5]}})
    yield made(sparse={"A": {"format": "csr", "shape": "ab"}})
    yield made(sparse={"A": {"format": "coo", "shape": [5, 4]}})
    yield made(parts | {"A.indices": A.indices.astype(np.float32)})
    yield made(parts | {"A.indptr": A.indptr[::-1].copy()})
    yield made({k: v for k, v in parts.items() if k != "A.values"})
    yield made(parts | {"A.values": np.array(1.0)})
    yield made(complex=["A.indices"])
    yield made(tree={"run": "print"})
    yield made(tree={"dict": 3})
    yield made(tree={"tensor": "A", "dict": []})
    yield made(tree={"dict": [[["unhashable"], {"value": 1}]]})
    yield made(tree={})


def test_safetensors_that_are_malformed(tmp_path):
    for i, content in enumerate(damaged_safetensors()):
        path = tmp_path / f"{i}.safetensors"
        path.write_bytes(content)
        with pytest.raises(sg.FileError, match=rf"load: .*{i}\.safetensors"):
            sg.load(path)


def test_safetensors_of_a_dtype_that_tensors_lack(tmp_path):
    header = json.dumps({"w": {"dtype": "F8_E4M3", "shape": [2], "data_offsets": [0, 2]}}).encode()
    header += b" " * (-len(header) % 8)
    path = tmp_path / "b.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(2))
    with pytest.raises(sg.FileError, match=r"load: .*b\.safetensors"):
        sg.load(path)
