"""The simulator sees every kind of bug that is planted, and nothing wrong in sound kernels."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import cudasim
from cudasim import KernelError

N = 100  # numbers in `a` and `b` of every planted kernel

# One kernel a bug: code, what the message must say, and launch options that differ from one block
# of 64 threads. The kernels run on a (float, filled), b (float, empty), c (int, zeros), n = N.
BUGS = {
    "missing barrier": (
        "__shared__ float s[64]; int i = threadIdx.x; s[i] = a[i]; b[i] = s[63 - i];",
        "data race|uninitialised shared",
        {},
    ),
    "missing barrier between rounds": (
        """__shared__ float s[64]; int i = threadIdx.x; s[i] = a[i]; __syncthreads();
        for (int o = 32; o > 0; o >>= 1) { if (i < o) s[i] += s[i + o]; }
        b[i] = s[0];""",
        "data race",
        {},
    ),
    "barrier in a divergent branch": (
        "__shared__ float s; if (threadIdx.x < 40) { s = 1.f; __syncthreads(); }",
        "already exited|data race",
        {},
    ),
    "two barriers where one is meant": (
        "if (threadIdx.x & 1) {\n __syncthreads();\n } else {\n __syncthreads(); }",
        "divergent __syncthreads",
        {},
    ),
    "return before a barrier": (
        "if (threadIdx.x >= 50) return; __syncthreads(); b[threadIdx.x] = 1.f;",
        "already exited",
        {},
    ),
    "barrier against shuffle": (
        "if (threadIdx.x < 32) __syncthreads();\n else __shfl_sync(~0u, 1, 0);\n __syncthreads();",
        "deadlock|divergent __syncthreads",
        {},
    ),
    "full mask in a divergent branch": (
        "int v = threadIdx.x; if (v < 20) v = __shfl_down_sync(0xffffffffu, v, 1); __syncwarp();",
        "mismatch|deadlock",
        {},
    ),
    "mask without the caller": (
        "b[threadIdx.x] = __shfl_xor_sync(0x0000ffffu, a[threadIdx.x], 1);",
        "does not name it",
        {},
    ),
    "shuffle from a lane outside the mask": (
        "int v = threadIdx.x; if ((v & 31) < 16) v = __shfl_sync(0x0000ffffu, v, 20);",
        "takes no part",
        {},
    ),
    "width of a shuffle": ("__shfl_sync(~0u, 1, 0, 12);", "not a power of two", {}),
    "read past the end": (
        "int i = threadIdx.x + 64 * blockIdx.x; if (i <= n) b[i % n] = a[i];",
        r"out-of-bounds read of 4 bytes .* 0 bytes past the end of device allocation",
        {"grid": 2},
    ),
    "write before the beginning": (
        "b[(int)threadIdx.x - 1] = 0.f;",
        r"out-of-bounds write .* 4 bytes before device allocation",
        {},
    ),
    "index of a static shared array": (
        "__shared__ int s[32]; s[threadIdx.x] = 1;",
        "out of bounds of|out-of-bounds write",
        {},
    ),
    "dynamic shared memory too small": (
        "extern __shared__ float s[]; s[threadIdx.x] = 1.f;",
        "out-of-bounds write .* dynamic shared memory",
        {"shared_mem": 63 * 4},
    ),
    "uninitialised shared memory": (
        "__shared__ float s[64]; if (threadIdx.x) s[threadIdx.x] = 1.f; __syncthreads();"
        " b[threadIdx.x] = s[0];",
        "uninitialised shared memory",
        {},
    ),
    "uninitialised accumulator": ("b[threadIdx.x] += 1.f;", "uninitialised memory", {}),
    "atomics on an uninitialised accumulator": (
        "atomicAdd(b, a[threadIdx.x]);",
        "atomic of uninitialised memory",
        {},
    ),
    "race between blocks": ("if (!threadIdx.x) c[0] += 1;", "data race", {"grid": 3}),
    "race within a block": ("c[0] = threadIdx.x;", "data race .write after write", {}),
    "race within a warp": (
        """__shared__ volatile float s[64]; int i = threadIdx.x; s[i] = a[i];
        float t = s[i ^ 1]; b[i] = t;""",
        "data race|uninitialised shared",
        {"block": 32},
    ),
    "plain access beside an atomic": (
        "if (threadIdx.x == 5) c[0] = 7; else atomicAdd(c, 1);",
        "data race",
        {},
    ),
    "misaligned vector load": (
        "float4 v = ((const float4*)(a + 1))[threadIdx.x % 8]; b[threadIdx.x] = v.x;",
        "misaligned",
        {},
    ),
    "misaligned vector store": (
        "((float2*)(b + 1))[threadIdx.x] = make_float2(0.f, 1.f);",
        "misaligned",
        {"block": 8},
    ),
    "vector load of words past the end": (
        "float4 v = __ldg((const float4*)a + threadIdx.x); ((float4*)b)[threadIdx.x] = v;",
        "out-of-bounds read",
        {"block": 26},
    ),
    "int32 overflow in an offset": (
        "int row = 50000 + threadIdx.x; long long at = row * 50000; if (at < 0) b[0] = 1.f;",
        r"signed overflow: 50000 \* 50000",
        {},
    ),
    "shift by the width": ("c[threadIdx.x] = 1 << (n - 68);", "shift out of range", {}),
    "division by zero": ("c[threadIdx.x] = n / (int)(threadIdx.x / 64);", "overflow|division", {}),
    "endless loop": ("while (((volatile int*)c)[0] == 0) {}", "step limit", {"block": 1}),
    "endless loop of collectives": (
        "while (__any_sync(~0u, n > 0)) {}",
        "step limit",
        {"block": 32},
    ),
    "waiting for another block": (
        "if (blockIdx.x == 0) { while (((volatile int*)c)[0] == 0) {} } else atomicExch(c, 1);",
        "step limit",
        {"grid": 2, "block": 1},
    ),
    "wild pointer": ("b[1ll << 40] = 1.f;", "out-of-bounds write", {"block": 1}),
    "stack overflow": (
        "volatile char big[1 << 18]; for (int i = 0; i < (1 << 18); i += 4096) big[i] = 1;",
        "memory fault",
        {"block": 1},
    ),
}

SOUND = {
    "tree in shared memory": (
        """__shared__ float s[64]; int i = threadIdx.x; s[i] = a[i]; __syncthreads();
        for (int o = 32; o > 0; o >>= 1) { if (i < o) s[i] += s[i + o]; __syncthreads(); }
        b[i] = s[0];""",
        {},
    ),
    "warp tree with syncwarp": (
        """__shared__ float s[64]; int i = threadIdx.x, l = i & 31; float* w = s + (i & ~31);
        w[l] = a[i]; __syncwarp();
        for (int o = 16; o > 0; o >>= 1) {
          float t = l < o ? w[l + o] : 0.f; __syncwarp(); if (l < o) w[l] += t; __syncwarp(); }
        b[i] = w[0];""",
        {},
    ),
    "exits leave the mask": (
        "if (threadIdx.x == 7) return; b[threadIdx.x] = __reduce_add_sync(~0u, 1u);",
        {},
    ),
    "atomics from all blocks": (
        "atomicAdd(c, 1); atomicMax(c + 1, (int)threadIdx.x);",
        {"grid": 3},
    ),
    "votes": (
        """unsigned odd = __ballot_sync(~0u, threadIdx.x & 1);
        bool ok = odd == 0xaaaaaaaau && __any_sync(~0u, (threadIdx.x & 31) == 3) &&
          !__all_sync(~0u, threadIdx.x & 1) && __popc(__match_any_sync(~0u, threadIdx.x / 4)) == 4;
        b[threadIdx.x] = ok; if (!ok) b[1 << 20] = 1.f;""",
        {},
    ),
    "dynamic shared memory": (
        "extern __shared__ double s[]; s[threadIdx.x] = a[threadIdx.x]; __syncthreads();"
        " b[threadIdx.x] = s[63 - threadIdx.x];",
        {"shared_mem": 64 * 8},
    ),
    "blockwise vote": ("b[threadIdx.x] = __syncthreads_count(threadIdx.x < 9);", {}),
}


def run(cp, body, grid=1, block=64, shared_mem=0, header=""):
    """Launch a kernel of this body on fresh arrays, and return them."""
    code = f"""{header}
extern "C" __global__ void k(const float* a, float* b, int* c, int n) {{ {body} }}"""
    a, b, c = cp.asarray(np.arange(N, dtype="f")), cp.empty(N, "f"), cp.asarray(np.zeros(N, "i"))
    kernel = cp.RawModule(code=code, options=("-std=c++17",)).get_function("k")
    kernel((grid,), (block,), (a, b, c, np.int32(N)), shared_mem=shared_mem)
    return a.get(), b.get(), c.get()


@pytest.mark.parametrize("bug", BUGS)
def test_planted_bug(sim, bug):
    body, message, launch = BUGS[bug]
    with cudasim.step_limit(20_000), pytest.raises(KernelError, match=message) as error:
        run(sim, body, **launch)
    text = str(error.value)
    if "exited" not in text and "step limit" not in text:
        assert re.search(r"kernel\.cu:\d", text), text  # where


@pytest.mark.parametrize("kernel", SOUND)
def test_sound_kernel_passes(sim, kernel):
    body, launch = SOUND[kernel]
    for seed in range(4):
        with cudasim.schedule(seed):
            run(sim, body, **launch)


def test_results(sim):
    for body, wanted in (
        (SOUND["tree in shared memory"][0], np.full(64, np.arange(64).sum())),
        (SOUND["blockwise vote"][0], np.full(64, 9)),
    ):
        assert (run(sim, body)[1][:64] == wanted).all()


def test_line_of_an_error(sim):
    with pytest.raises(KernelError, match=r"at kernel\.cu:4"):
        run(sim, "\n\nb[n] = 0.f;")


def test_line_directives_name_the_file(sim):
    header = '#line 7 "mine.cuh"\n__device__ void store(float* p) { *p = 1.f; }\n#line 1 "mine.cu"'
    with pytest.raises(KernelError, match=r"mine\.cuh:7"):
        run(sim, "store(b + n);", header=header)


def test_grid_of_zero_reaches_an_unguarded_kernel(sim):
    """CuPy makes one block of it, and the arrays of an empty problem are null pointers."""
    empty = sim.empty(0, "f")
    for guard, caught in (("", True), ("if (i < n)", False)):
        code = f"""extern "C" __global__ void k(float* a, int n) {{
          int i = threadIdx.x; {guard} a[i] = 1.f; }}"""
        kernel = sim.RawModule(code=code).get_function("k")
        if caught:
            with pytest.raises(KernelError, match="out-of-bounds write"):
                kernel((0,), (32,), (empty, np.int32(0)))
        else:
            kernel((0,), (32,), (empty, np.int32(0)))


def test_freed_memory_is_out_of_bounds(sim):
    code = """__device__ float* kept;
    extern "C" __global__ void keep(float* a) { kept = a; }
    extern "C" __global__ void use() { kept[0] = 1.f; }"""
    module = sim.RawModule(code=code)
    a = sim.zeros(4, "f")
    module.get_function("keep")((1,), (1,), (a,))
    module.get_function("use")((1,), (1,), ())
    del a
    with pytest.raises(KernelError, match="out-of-bounds write"):
        module.get_function("use")((1,), (1,), ())


def test_the_last_block_pattern_is_a_false_alarm(sim):
    """Blocks are never ordered here, so a fence and a counter do not help. Write two kernels."""
    body = """__shared__ bool last; if (!threadIdx.x) { b[blockIdx.x] = 1.f; __threadfence();
      last = atomicAdd(c, 1) == gridDim.x - 1; } __syncthreads();
      if (last && !threadIdx.x) for (int i = 0; i < gridDim.x; ++i) b[50] = b[i];"""
    with pytest.raises(KernelError, match="data race"):
        run(sim, body, grid=3)


@pytest.mark.parametrize("launch", [{"block": 1025}, {"shared_mem": 49 << 10}])
def test_impossible_launch(sim, launch):
    with pytest.raises(sim.cuda.driver.CUDADriverError, match="INVALID_VALUE"):
        run(sim, "", **launch)


def test_more_dynamic_shared_memory_on_request(sim):
    code = """extern "C" __global__ void k(int* c) { extern __shared__ int s[];
      s[15000] = 3; __syncthreads(); c[0] = s[15000]; }"""
    kernel, c = sim.RawModule(code=code).get_function("k"), sim.empty(1, "i")
    kernel.max_dynamic_shared_size_bytes = 64 << 10
    kernel((1,), (1,), (c,), shared_mem=60_004)
    assert c.get()[0] == 3


def test_compile_error(sim):
    with pytest.raises(sim.cuda.compiler.CompileException, match=r"kernel\.cu:2"):
        run(sim, "int x = ;")


# ---- schedules, recording


def test_seed_decides_the_order(sim):
    def order(seed):
        with cudasim.schedule(seed):
            return run(sim, "b[atomicAdd(c, 1)] = threadIdx.x + 32 * blockIdx.x;", 3, 32)[1][:96]

    assert (order(0) == np.arange(96)).all()
    assert (order(5) == order(5)).all()
    assert (order(5) != order(6)).any()
    assert (np.sort(order(5)) == np.arange(96)).all()


def test_launches_and_synchronisations_are_counted(sim):
    code = 'extern "C" __global__ void k(float* x) {}'
    kernel = sim.RawModule(code=code).get_function("k")
    x = sim.empty(1, "f")
    before = cudasim.synchronisations()
    with cudasim.record_launches() as launches:
        kernel((2, 3), (32,), (x,))
    assert launches == [("k", (2, 3, 1), (32, 1, 1), 0)]
    assert cudasim.synchronisations() == before
    sim.cuda.Device().synchronize()
    assert cudasim.synchronisations() == before + 1


def test_memory(sim):
    with pytest.raises(sim.cuda.runtime.CUDARuntimeError, match="out of memory"):
        sim.empty(9 << 30, np.int8)
    with pytest.raises(sim.cuda.memory.OutOfMemoryError):
        sim.cuda.MemoryPool().malloc(9 << 30)
    x = sim.asarray(np.arange(5.0))
    assert (x.copy().get() == np.arange(5.0)).all()


# ---- in processes of their own

TESTS = Path(__file__).resolve().parent.parent


def python(script):
    script = f"import sys; sys.path.insert(0, {str(TESTS)!r})\nimport cudasim\n{script}"
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)


def test_install_comes_first(sim):
    done = python("import cupy_backends.cuda.api.runtime\ncudasim.install()")
    assert "before the first import of cupy" in done.stderr


def test_install_once(sim):
    assert cudasim.install() is sim
    with pytest.raises(RuntimeError, match="already installed"):
        cudasim.install(check=False)


def test_plain_build_runs_and_still_reports_faults(sim):
    body = SOUND["tree in shared memory"][0].replace("\n", " ")
    done = python(f"""
cp = cudasim.install(check=False)
import numpy as np
k = lambda body: cp.RawModule(code='extern "C" __global__ void k(const float* a, float* b) {{%s}}'
    % body, options=("-std=c++17",)).get_function("k")
a, b = cp.asarray(np.arange(64, dtype="f")), cp.empty(64, "f")
k('''{body}''')((1,), (64,), (a, b))
assert (b.get() == 2016).all()
try:
    k("b[1ll << 40] = 1.f;")((1,), (1,), (a, b))
except cudasim.KernelError as error:
    print(error)
""")
    assert "memory fault" in done.stdout, done.stderr
