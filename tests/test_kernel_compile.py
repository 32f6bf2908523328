"""Every CUDA kernel compiles with NVRTC, without spills and with half of a multiprocessor to spare.

No GPU and no driver are needed. It says that the code is legal CUDA and what it costs to run, and
nothing about what it computes.
"""

import re

import pytest

from kernels import resources
from sparsegrad.backends import cuda_kernels

EVERY_INSTANCE_ON = (75, 90)
ONE_INSTANCE_ON = (80, 86, 89, 100, 120)
FAMILIES = sorted(cuda_kernels.instances())


@pytest.fixture(scope="module", autouse=True)
def _nvrtc():
    try:
        resources.require()
    except resources.NvrtcMissing as error:
        pytest.skip(str(error))


def one_of_each(expressions):
    """The first instance of each kernel."""
    return list({e.partition("<")[0]: e for e in reversed(expressions)}.values())


@pytest.mark.parametrize("arch", sorted(EVERY_INSTANCE_ON + ONE_INSTANCE_ON))
@pytest.mark.parametrize("family", FAMILIES)
def test_compiles_within_limits(family, arch):
    expressions = cuda_kernels.instances()[family]
    if arch in ONE_INSTANCE_ON:
        expressions = one_of_each(expressions)
    measured = resources.measure(family, expressions, arch)
    assert [r.kernel for r in measured] == expressions
    for r in measured:
        assert r.registers > 0, r
        assert r.stack_bytes == 0, f"{r} spills"
        assert r.occupancy >= 0.5, f"{r}: occupancy {r.occupancy:.0%}"


def test_loads_are_16_bytes_wide():
    for family, expression in (
        ("sddmm", "sg_sddmm<float, int, 4>"),
        ("sddmm", "sg_sddmm<__half, int, 8>"),
        ("sddmm", "sg_sddmm<double, int, 2>"),
        ("spmm", "sg_spmm<float, int, 4>"),
        ("spmm", "sg_spmm<__half, long long, 8>"),
        ("coalesce", "sg_coalesce_sum_rows<__nv_bfloat16, int, 8>"),
    ):
        ptx, _ = resources.compile_kernels(family, [expression], 80, "PTX")
        assert len(re.findall(rb"ld\.global\.nc\.v4\.\w32", ptx)) >= 4, expression


def test_offsets_are_64_bits_wide():
    """The address of a row: 32 by 32 bits into 64, never a product cut to 32."""
    ptx, _ = resources.compile_kernels("sddmm", ["sg_sddmm<float, int, 4>"], 80, "PTX")
    assert re.search(rb"mul\.wide\.u32|mad\.wide\.u32|mul\.lo\.s64", ptx)


def test_every_kernel_of_the_source_has_instances():
    """And every instance has a kernel, whose parameters the launch helper can read."""
    for family in FAMILIES:
        named = {e.partition("<")[0] for e in cuda_kernels.instances()[family]}
        kernels = re.findall(
            r"__global__\s+void\s+(?:__launch_bounds__\([^)]*\)\s*)?(\w+)",
            cuda_kernels.source(family),
        )
        assert named == set(kernels)
        for expression in cuda_kernels.instances()[family]:
            name, _, args = expression.rstrip(">").partition("<")
            assert cuda_kernels.kernel(family, name, *args.split(", ")).parameters


def test_kernels_suit_the_simulator():
    """What the simulator cannot run, and what would need a newer toolkit: not in these sources."""
    forbidden = r"\basm\b|cooperative_groups|__activemask|#include\s+\""
    for family in FAMILIES:
        assert not re.search(forbidden, cuda_kernels.source(family))


def test_resources_of_a_greedy_kernel(monkeypatch):
    """The measurements see a spill and a shared array when there are some."""
    code = """template <typename T> __global__ void __launch_bounds__(1024) sg_greedy(T* x) {
      __shared__ T s[128]; T v[80];
      for (int i = 0; i < 80; ++i) v[i] = x[i * 1024 + threadIdx.x];
      s[threadIdx.x % 128] = v[0]; __syncthreads();
      for (int r = 0; r < 9; ++r)
        for (int i = 0; i < 80; ++i) v[i] = v[i] * v[(i * 7 + r) % 80] + s[i];
      for (int i = 0; i < 80; ++i) x[i * 1024 + threadIdx.x] = v[i]; }"""
    monkeypatch.setattr(cuda_kernels, "source", lambda family: code)
    (measured,) = resources.measure("greedy", ["sg_greedy<float>"], 80)
    assert measured.stack_bytes > 0 and measured.registers <= 64
    assert measured.shared_bytes >= 512


def test_readme_names_every_kernel():
    """`python kernels/resources.py --write` has been run since the last one was added."""
    readme = (resources.HERE / "README.md").read_text(encoding="utf-8")
    for expressions in cuda_kernels.instances().values():
        for expression in one_of_each(expressions):
            assert f"| `{expression.partition('<')[0]}` |" in readme
