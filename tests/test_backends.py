"""The contract of backends, and when the fast ones load and cache their kernels."""

import inspect
import os
import subprocess
import sys

import pytest

from backend_cases import REFERENCE
from sparsegrad.backends.base import Backend
from sparsegrad.backends.cpu import Cpu
from sparsegrad.backends.cpu_jit_narrow import CpuJitNarrow


def methods(cls):
    return {
        name: member
        for base in cls.__mro__[:-1]
        for name, member in vars(base).items()
        if inspect.isfunction(member) and not name.startswith("_")
    }


@pytest.mark.parametrize("cls", [Cpu, CpuJitNarrow])
def test_overrides_keep_the_signature(cls):
    contract = methods(Backend)
    for base in cls.__mro__[: cls.__mro__.index(Backend)]:
        for name, member in methods(base).items():
            assert name in contract, f"{base.__name__}.{name} is not in the contract"
            assert inspect.signature(member) == inspect.signature(contract[name]), name


def test_names():
    assert [b.name for b in (REFERENCE, Cpu(), CpuJitNarrow())] == ["reference", "cpu", "cpu_jit"]


def test_small_problems_do_not_load_numba():
    code = """
import sys
import numpy as np
from sparsegrad.backends.cpu_jit import CpuJit
from sparsegrad.structure.pattern import Pattern
be = CpuJit()
p = Pattern.coo(([0, 1, 0], [1, 0, 1]), (2, 2))
be.spmm(p, np.ones(3, "f4"), np.ones((2, 2), "f4"))
be.sddmm(p, np.ones((2, 2), "f4"), np.ones((2, 2), "f4"))
be.segment_softmax(np.ones(3, "f4"), np.array([0, 3]))
assert "numba" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_cache_knows_kernels_by_all_the_sources_they_are_built_from(monkeypatch):
    from sparsegrad.backends import cpu_jit_kernels_dense, cpu_jit_launch
    from sparsegrad.backends.cpu_jit_kernels_axes import softmax_rows
    from sparsegrad.backends.cpu_jit_kernels_channels import channels_scaled

    def digests():
        digest = cpu_jit_launch._parts_digest.__wrapped__
        return [digest(k.function.__module__) for k in (softmax_rows, channels_scaled)]

    before, source = digests(), inspect.getsource

    def changed(module):
        return source(module) + "# new" * (module is cpu_jit_kernels_dense)

    monkeypatch.setattr(inspect, "getsource", changed)
    axes, channels = digests()
    assert axes != before[0] and channels == before[1]


def test_kernels_run_where_nothing_can_be_cached(tmp_path):
    code = """
import numpy as np
from numba.core import caching
def denied(self, path=None):
    raise PermissionError("read-only")
caching._CacheLocator.ensure_cache_path = denied
from sparsegrad.backends.cpu_jit import CpuJit
assert CpuJit(always=True).segment_sum(np.ones(3, "f4"), np.array([0, 3])) == 3
"""
    env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=env)
    assert not list(tmp_path.iterdir())
