"""The simulator's errors; a kernel's says where in the .cu text it happened."""

import re
import subprocess
from pathlib import Path


class KernelError(RuntimeError):
    """A kernel did what CUDA leaves undefined, or could not finish."""

    def __init__(self, message: str) -> None:
        super().__init__(_resolve_places(message))


class CompileError(RuntimeError):
    """g++ refused a kernel, or the simulator itself."""


def _resolve_places(message: str) -> str:
    """Replace each `@@library+0xoffset@@` that native code left by `at file:line`."""

    def place(match: re.Match[str]) -> str:
        library, offset = match.groups()
        command = ["addr2line", "-e", library, "-i", offset]
        try:
            lines = subprocess.run(command, capture_output=True, text=True).stdout.split("\n")
        except FileNotFoundError:
            return f"at {Path(library).name}+{offset} (no addr2line to name the line)"
        names = [Path(line.split(" ")[0]).name for line in lines if line and "?" not in line]
        # Inlined frames come first; those of the device headers say nothing about the kernel.
        names = [name for name in names if not name.startswith(("cudasim", "cuda_"))]
        return "at " + " < ".join(dict.fromkeys(names)) if names else ""

    return re.sub(r"@@(.*?)\+(0x[0-9a-f]+)@@", place, message)
