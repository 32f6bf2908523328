"""Compile the kernels with NVRTC, which needs no GPU, tell what they ask of a multiprocessor, and
predict from that what share of the bandwidth they use.

    python kernels/resources.py                print the tables
    python kernels/resources.py --arch 80 120  for other architectures
    python kernels/resources.py --write        put them into kernels/README.md

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


def resources(architectures: Sequence[int]) -> dict[int, dict[str, Resources]]:
    """What every instance takes: architecture -> expression -> resources."""
    return {
        arch: {
            r.kernel: r
            for family, expressions in cuda_kernels.instances().items()
            for r in measure(family, expressions, arch)
        }
        for arch in architectures
    }


def table(measured: dict[int, dict[str, Resources]]) -> str:
    """Markdown: for each kernel the most registers of its instances, and the occupancy left."""
    head = "| kernel | instances | " + " | ".join(
        f"sm_{arch} registers | sm_{arch} occupancy" for arch in measured
    )
    lines = [head + " | shared bytes | stack bytes |"]
    lines.append("|---|" + "---:|" * (3 + 2 * len(measured)))
    expressions = [e for of_family in cuda_kernels.instances().values() for e in of_family]
    for kernel in dict.fromkeys(e.partition("<")[0] for e in expressions):
        rows = [
            [r for r in by_name.values() if r.kernel.partition("<")[0] == kernel]
            for by_name in measured.values()
        ]
        everything = [r for row in rows for r in row]
        cells = [f"`{kernel}`", str(len(rows[0]))]
        for row in rows:
            worst = min(row, key=lambda r: (r.occupancy, -r.registers))
            cells += [str(worst.registers), f"{worst.occupancy:.0%}"]
        cells.append(str(max(r.shared_bytes for r in everything)))
        cells.append(str(max(r.stack_bytes for r in everything)))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


# ---- prediction


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU: data sheet, and the time a load takes while memory is busy."""

    name: str
    arch: int
    bandwidth: float  # bytes a second
    multiprocessors: int
    latency: float = 0.7e-6  # seconds, assumed

    @property
    def in_flight(self) -> float:
        """Bytes a multiprocessor must have asked for to keep memory busy (Little's law)."""
        return self.bandwidth * self.latency / self.multiprocessors


CARDS = (Card("H200", 90, 4.8e12, 132), Card("T4", 75, 0.32e12, 40))
COPY = 0.9  # of the bandwidth, what the best kernel there is reaches: assumed
SECTOR = 32  # bytes; the least that memory moves


@dataclass(frozen=True, slots=True)
class Case:
    """What a kernel does to an entry, as its source says."""

    expression: str
    what: str
    loads: int  # a lane has in flight
    load_bytes: int  # of each
    gathered: tuple[int, ...]  # bytes of the rows that are read or written at places of their own
    streamed: float  # bytes that are read or written one after the other

    @property
    def moved(self) -> float:
        """Bytes that go through memory: gathered ones in whole sectors."""
        return sum(-(-n // SECTOR) * SECTOR for n in self.gathered) + self.streamed

    @property
    def useful(self) -> float:
        """Bytes that were asked for."""
        return sum(self.gathered) + self.streamed

    def share(self, card: Card, taken: Resources) -> float:
        """Of the bandwidth, what is used: as much as loads in flight keep busy, COPY at most."""
        return COPY * min(1.0, self.flying(card, taken) / card.in_flight)

    def flying(self, card: Card, taken: Resources) -> float:
        """Bytes that a multiprocessor full of warps has asked for."""
        return taken.occupancy * _THREADS[card.arch] * self.loads * self.load_bytes


# Tables that are read by index are taken to be larger than L2, and no row to be read twice.
CASES = (
    Case("sg_sddmm<float, int, 4>", "fp32, k = 64", 8, 16, (256, 256), 12),
    Case("sg_sddmm<__half, int, 8>", "fp16, k = 64", 8, 16, (128, 128), 10),
    Case("sg_sddmm<float, int, 4>", "fp32, k = 4", 2, 16, (16, 16), 12),
    Case("sg_spmm<float, int, 4>", "fp32, k = 64, 16 entries a row", 4, 16, (256,), 8 + 256 / 16),
    Case("sg_spmm<__half, int, 8>", "fp16, k = 64, 16 entries a row", 4, 16, (128,), 6 + 128 / 16),
    Case("sg_spmm<float, int, 1>", "fp32, k = 1, 16 entries a row", 4, 4, (4,), 8 + 4 / 16),
    Case("sg_spmm_extreme<float, int, 4>", "fp32, k = 64, 16 a row", 2, 16, (256,), 8 + 768 / 16),
    Case("sg_segment_reduce<float, int, 0>", "fp32, D = 1, 16 a segment", 4, 4, (), 4 + 8 / 16),
    Case("sg_segment_softmax<float, int>", "fp32, D = 1, 256 a segment", 8, 4, (), 8 + 4 / 256),
    Case("sg_segment_softmax_grad<float, int>", "the same", 8, 4, (), 12 + 4 / 256),
    Case("sg_rows_gather<unsigned int, int, 4>", "fp32, D = 64", 4, 16, (256,), 256 + 4),
    Case("sg_rows_gather_tables<unsigned int, int, 4>", "fp32, D = 16", 4, 16, (64, 64), 4),
    Case("sg_rows_adam<float, int, 4>", "fp32, D = 64, a row", 4, 16, (256,) * 7, 12),
    Case("sg_rows_sgd<float, int, 4>", "fp32, D = 64, momentum, a row", 3, 16, (256,) * 5, 12),
    Case("sg_rows_rowwise_adagrad<float, int, 4>", "fp32, D = 64, a row", 2, 16, (256,) * 4, 20),
    Case("sg_coalesce_sum_rows<float, int, 4>", "fp32, D = 64, pairs", 4, 16, (256,), 8 + 256 / 2),
    Case("sg_coalesce_sum<float, int>", "fp32, pairs", 8, 4, (4,), 8 + 4 / 2),
    Case("sg_validate_indices<int>", "one list", 1, 4, (), 4),
)


def prediction(measured: dict[int, dict[str, Resources]]) -> str:
    """Markdown: of each case, bytes an entry, and what the cards should reach."""
    head = "| kernel | case | bytes moved | useful |"
    for card in CARDS:
        head += f" {card.name}: in flight / needed | bandwidth, at most | entries a second |"
    lines = [head, "|---|---|" + "---:|" * (2 + 3 * len(CARDS))]
    for case in CASES:
        cells = [f"`{case.expression}`", case.what, f"{case.moved:.0f}"]
        cells.append(f"{case.useful / case.moved:.0%}")
        for card in CARDS:
            taken = measured[card.arch][case.expression]
            flying = case.flying(card, taken)
            share = case.share(card, taken)
            cells.append(f"{flying / 1e3:.0f} / {card.in_flight / 1e3:.0f} kB")
            cells += [f"{share:.0%}", f"{share * card.bandwidth / case.moved / 1e9:.1f} G"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Print the tables, or write them between their marks in README.md."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="into kernels/README.md")
    parser.add_argument("--arch", type=int, nargs="+", default=[75, 90], choices=ARCHITECTURES)
    args = parser.parse_args()
    measured = resources(args.arch)
    parts = {"resources": table(measured)}
    if {card.arch for card in CARDS} <= set(args.arch):
        parts["prediction"] = prediction(measured)
    if not args.write:
        print(*parts.values(), sep="\n\n")
        return
    readme = HERE / "README.md"
    text = readme.read_text(encoding="utf-8")
    for name, part in parts.items():
        marks = rf"(<!-- {name} -->\n).*(<!-- /{name} -->)"
        text = re.sub(marks, rf"\g<1>{part}\n\g<2>", text, flags=re.S)
    readme.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
