"""Compile the kernels with NVRTC, which needs no GPU, and tell what they ask of a multiprocessor.

    python kernels/resources.py                print the table
    python kernels/resources.py --arch 80 120  for other architectures
    python kernels/resources.py --write        put it into kernels/README.md

Needs the packages nvidia-cuda-nvrtc-cu12 and nvidia-cuda-runtime-cu12 (CUDA's own headers).
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import re
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from sparsegrad.backends import cuda_kernels  # noqa: E402

BLOCK = 256  # threads of a block, for every kernel

# Registers, and threads, of a multiprocessor.
_REGISTERS = 65536
_THREADS = {75: 1024, 80: 2048, 86: 1536, 89: 1536, 90: 2048, 100: 2048, 120: 1536}
ARCHITECTURES = tuple(_THREADS)


@dataclass(frozen=True, slots=True)
class Resources:
    """What one kernel instance takes on one architecture."""

    kernel: str
    arch: int
    registers: int
    shared_bytes: int
    stack_bytes: int  # spills, and arrays that are indexed at run time

    @property
    def occupancy(self) -> float:
        """Share of a multiprocessor's threads that can be resident at once."""
        # Registers are given to warps in units of 256, which is 8 a thread.
        by_registers = _REGISTERS // (-(-self.registers // 8) * 8 * BLOCK)
        return min(by_registers, _THREADS[self.arch] // BLOCK) * BLOCK / _THREADS[self.arch]


class NvrtcMissing(RuntimeError):
    """NVRTC or CUDA's headers are not installed."""


def _wheel(package: str, name: str) -> Path:
    spec = importlib.util.find_spec(f"nvidia.{package}") if _has_nvidia() else None
    for root in spec.submodule_search_locations or () if spec else ():
        if found := sorted(Path(root).glob(name)):
            return found[0]
    wheel = f"nvidia-{package.replace('_', '-')}-cu12"
    raise NvrtcMissing(f"{name} not found: pip install {wheel}")


def _has_nvidia() -> bool:
    return importlib.util.find_spec("nvidia") is not None


@cache
def _nvrtc() -> ctypes.CDLL:
    library = ctypes.CDLL(str(_wheel("cuda_nvrtc", "lib/libnvrtc.so.*")))
    library.nvrtcGetErrorString.restype = ctypes.c_char_p
    return library


@cache
def _include() -> Path:
    return _wheel("cuda_runtime", "include/cuda_fp16.h").parent


def require() -> None:
    """Raise NvrtcMissing unless kernels can be compiled here."""
    _nvrtc()
    _include()


def _call(name: str, *args: object) -> None:
    status = getattr(_nvrtc(), name)(*args)
    if status:
        raise RuntimeError(f"{name}: {_nvrtc().nvrtcGetErrorString(status).decode()}")


def _text(program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    _call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    _call(f"nvrtcGet{what}", program, buffer)
    return buffer.raw


def compile_kernels(
    family: str, expressions: Sequence[str], arch: int, kind: str = "CUBIN"
) -> tuple[bytes, dict[str, str]]:
    """Compile instances of `kernels/<family>.cu` -> machine code (or PTX), their symbols."""
    program = ctypes.c_void_p()
    code = cuda_kernels.source(family).encode()
    name = f"{family}.cu".encode()
    _call("nvrtcCreateProgram", ctypes.byref(program), code, name, 0, None, None)
    try:
        for expression in expressions:
            _call("nvrtcAddNameExpression", program, expression.encode())
        virtual = "sm" if kind == "CUBIN" else "compute"
        options = [  # CuPy's own, and those of cuda_kernels
            f"-arch={virtual}_{arch}",
            "-std=c++17",
            "-ftz=true",
            "--device-as-default-execution-space",
            f"-I{_include()}",
        ]
        array = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
        if _nvrtc().nvrtcCompileProgram(program, len(options), array):
            log = _text(program, "ProgramLog").decode()
            raise RuntimeError(f"{family}.cu does not compile for sm_{arch}:\n{log}")
        symbols = {}
        for expression in expressions:
            lowered = ctypes.c_char_p()
            _call("nvrtcGetLoweredName", program, expression.encode(), ctypes.byref(lowered))
            symbols[expression] = lowered.value.decode()
        return _text(program, kind), symbols
    finally:
        _nvrtc().nvrtcDestroyProgram(ctypes.byref(program))


def _sections(elf: bytes) -> dict[str, bytes]:
    """Section name -> contents; of a section without contents, its size in zero bytes."""
    (offset,) = struct.unpack_from("<Q", elf, 40)
    entry, count, names_at = struct.unpack_from("<HHH", elf, 58)
    headers = [struct.unpack_from("<IIQQQQ", elf, offset + i * entry) for i in range(count)]
    names = headers[names_at]
    sections = {}
    for name, kind, _, _, start, size in headers:
        begin = names[4] + name
        text = elf[begin : elf.index(b"\0", begin)].decode()
        sections[text] = bytes(size) if kind == 8 else elf[start : start + size]
    return sections


def _attributes(info: bytes) -> list[tuple[int, bytes]]:
    """The records of an .nv.info section: attribute number, value."""
    at, records = 0, []
    while at + 4 <= len(info):
        form, attribute, size = struct.unpack_from("<BBH", info, at)
        length = size if form == 4 else 0  # other forms keep their value in the size field
        records.append((attribute, info[at + 4 : at + 4 + length]))
        at += 4 + length
    return records


def read_resources(cubin: bytes, symbols: dict[str, str], arch: int) -> list[Resources]:
    """Read registers, shared memory and stack of each kernel from its machine code."""
    frame_size, register_count = 0x11, 0x2F  # attributes of .nv.info
    sections = _sections(cubin)
    names = sections[".strtab"]
    table = sections[".symtab"]
    symbol_names = []
    for at in range(0, len(table), 24):
        (name,) = struct.unpack_from("<I", table, at)
        symbol_names.append(names[name : names.index(b"\0", name)].decode())
    found: dict[int, dict[str, int]] = {frame_size: {}, register_count: {}}
    for attribute, value in _attributes(sections[".nv.info"]):
        if attribute in found:
            index, number = struct.unpack("<II", value)
            found[attribute][symbol_names[index]] = number
    return [
        Resources(
            expression,
            arch,
            found[register_count][symbol],
            len(sections.get(f".nv.shared.{symbol}", b"")),
            found[frame_size].get(symbol, 0),
        )
        for expression, symbol in symbols.items()
    ]


def measure(family: str, expressions: Sequence[str], arch: int) -> list[Resources]:
    """Compile instances of one file for one architecture, and read what they take."""
    cubin, symbols = compile_kernels(family, expressions, arch)
    return read_resources(cubin, symbols, arch)


def table(architectures: Sequence[int] = (75, 90)) -> str:
    """Markdown: for each kernel the most registers of its instances, and the occupancy left."""
    head = "| kernel | instances | " + " | ".join(
        f"sm_{arch} registers | sm_{arch} occupancy" for arch in architectures
    )
    lines = [head + " | shared bytes | stack bytes |"]
    lines.append("|---|" + "---:|" * (3 + 2 * len(architectures)))
    for family, expressions in cuda_kernels.instances().items():
        by_arch = {arch: measure(family, expressions, arch) for arch in architectures}
        kernels = dict.fromkeys(expression.partition("<")[0] for expression in expressions)
        for kernel in kernels:
            rows = {
                arch: [r for r in measured if r.kernel.partition("<")[0] == kernel]
                for arch, measured in by_arch.items()
            }
            everything = [r for row in rows.values() for r in row]
            cells = [f"`{kernel}`", str(len(rows[architectures[0]]))]
            for row in rows.values():
                worst = min(row, key=lambda r: (r.occupancy, -r.registers))
                cells += [str(worst.registers), f"{worst.occupancy:.0%}"]
            cells.append(str(max(r.shared_bytes for r in everything)))
            cells.append(str(max(r.stack_bytes for r in everything)))
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Print the table, or write it between the two marks in README.md."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="into kernels/README.md")
    parser.add_argument("--arch", type=int, nargs="+", default=[75, 90], choices=ARCHITECTURES)
    args = parser.parse_args()
    text = table(args.arch)
    if not args.write:
        print(text)
        return
    readme = HERE / "README.md"
    marks = r"(<!-- resources -->\n).*(<!-- /resources -->)"
    old = readme.read_text(encoding="utf-8")
    readme.write_text(re.sub(marks, rf"\g<1>{text}\n\g<2>", old, flags=re.S), encoding="utf-8")


if __name__ == "__main__":
    main()
