"""Compile the simulator and the kernels with g++; results are kept by the hash of their inputs."""

import functools
import hashlib
import os
import re
import subprocess
import sysconfig
import tempfile
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

from .errors import CompileError
from .source import entry_points, plain_kernels, symbol, translate

HERE = Path(__file__).resolve().parent
DEVICE, NATIVE = HERE / "device", HERE / "native"
CXX = os.environ.get("CUDASIM_CXX", "g++")

# -ffp-contract=off: otherwise results would depend on the processor of the machine that tests.
# -fno-gnu-unique: else a library stays loaded, and static members are shared between modules.
_COMMON = [
    *("-std=c++17", "-fPIC", "-w", "-ffp-contract=off"),
    *("-fno-strict-aliasing", "-fno-gnu-unique"),
]
_PLAIN = ["-O2"]
# The sanitizers' calls end in native/hooks.cpp; their libraries are never linked.
# DWARF 4: in version 5, addr2line reads the file names of `#line` directives wrongly. -g1: lines
# are all that is asked for.
_CHECK = [
    *("-O1", "-gdwarf-4", "-g1", "-fno-omit-frame-pointer"),
    "-fsanitize=thread,alignment,bounds,signed-integer-overflow,shift,integer-divide-by-zero",
]
# CuPy's own generated kernels copy the padding of structs and write one value from many threads:
# for them only bounds are checked.
_CUPY_GENERATED = "#include <cupy/complex.cuh>"
CHECK_BOUNDS, CHECK_ALL = 1, 2


def cache_dir() -> Path:
    """Where compiled libraries are kept: `CUDASIM_CACHE_DIR`, or a place of this user's own."""
    chosen = os.environ.get("CUDASIM_CACHE_DIR")
    default = Path(tempfile.gettempdir()) / f"cudasim-{os.getuid()}"
    directory = Path(chosen) if chosen else default
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def run(command: Sequence[str | Path], text: str | None = None) -> str:
    """Run a compiler and return what it printed; its complaints become a CompileError."""
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True)
    except FileNotFoundError:
        raise CompileError(f"{command[0]} not found: the simulator needs g++ 12 or later") from None
    if done.returncode:
        raise CompileError(done.stderr)
    return done.stdout


def _digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


@functools.cache
def device_digest() -> str:
    """Of everything in this directory that can change the library made of a kernel."""
    files = [*sorted(DEVICE.iterdir()), HERE / "build.py", HERE / "source.py"]
    return _digest(CXX, [file.read_text() for file in files])


def _mine(kind: str = "") -> str:
    """The ending of a file that no other process or thread writes."""
    return f".{os.getpid()}-{threading.get_ident()}{kind}"


def _publish(made: Path, at: Path) -> None:
    """Several test processes may build the same file: the last one in wins, all are whole."""
    os.replace(made, at)


def native_library() -> Path:
    """The simulator: fibers, checks, and CuPy's entry points."""
    flags = ["-std=c++17", "-O2", "-g", "-fPIC", "-shared"]
    flags.append(f"-I{sysconfig.get_paths()['include']}")
    sources = [path.read_text() for path in sorted(NATIVE.iterdir())]
    library = cache_dir() / f"cudasim-{_digest(CXX, flags, sources)}.so"
    if not library.exists():
        made = library.with_suffix(_mine())
        files = sorted(NATIVE.glob("*.cpp"))
        run([CXX, *flags, "-o", made, *files, "-ldl"])
        _publish(made, library)
    return library


def compile_kernels(
    source: str, instances: Iterable[str], options: Iterable[str], check: bool
) -> tuple[Path, dict[str, str]]:
    """Return the library of a .cu text, and the symbol of each template instance asked for."""
    instances = list(instances)
    options = [option for option in options if re.match(r"-[DI]", option)]
    flags = [*(_CHECK if check else _PLAIN), *_COMMON]
    key = _digest(device_digest(), source, instances, options, flags)
    library = cache_dir() / f"kernels-{key}.so"
    if not library.exists():
        generated = source.lstrip().startswith(_CUPY_GENERATED)
        name = "cupy_generated.cu" if generated else "kernel.cu"
        text = f'#line 1 "{name}"\n{source}\n'
        language = ["-x", "c++", "-", "-include", DEVICE / "cudasim.h", f"-I{DEVICE}"]
        preprocessed = run([CXX, "-E", *language, *_COMMON, *options], text)
        headers, own = _split(preprocessed)
        kernels = plain_kernels(own)
        kernels += [kernel for kernel in instances if kernel not in kernels]
        text = translate(own) + "".join(map(entry_points, kernels))
        if check:
            level = CHECK_BOUNDS if generated else CHECK_ALL
            text += f'\nextern "C" {{ extern const int sim_check_level = {level}; }}\n'
        language = ["-x", "c++", "-", "-include", _compiled_headers(headers, flags)]
        made = library.with_suffix(_mine())
        # -Bsymbolic: kernels of one name in two libraries must not meet.
        linking = ["-shared", "-Wl,-Bsymbolic", "-o", made]
        # The sanitizer flags are for compiling only: when linking they would add the libraries.
        unit = library.with_suffix(_mine(".o"))
        run([CXX, "-c", *language, "-o", unit, *flags], text)
        run([CXX, *linking, unit])
        unit.unlink()
        _publish(made, library)
    return library, {instance: symbol(instance) for instance in instances}


def _split(preprocessed: str) -> tuple[str, str]:
    """What a text includes, at its beginning, and the text itself, which g++ -E comes back to."""
    *_, last = re.finditer(r'^# \d+ "[^"]*" 2$', preprocessed, flags=re.M)
    return preprocessed[: last.start()], preprocessed[last.start() :]


def _compiled_headers(text: str, flags: Sequence[str]) -> Path:
    """Headers, preprocessed, as g++ reads them fastest: there are hundreds of small kernels, and
    most of the time of each would go into reading the same 800 kB."""
    header = cache_dir() / f"headers-{_digest(CXX, text, flags)}.h"
    compiled = header.with_suffix(".h.gch")
    if not compiled.exists():
        made = header.with_suffix(_mine())
        made.write_text(translate(text))
        parts = header.with_suffix(_mine(".gch"))
        run([CXX, "-x", "c++-header", made, "-o", parts, *flags])
        _publish(made, header)
        _publish(parts, compiled)
    return header
