"""What `import sparsegrad` costs, next to what it is built on and to its peers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from bench.cases import OURS, Candidate, Variant
from bench.machine import ROOT
from bench.oracle import Expected

__all__ = ["ImportTime"]

_SCIPY = "import scipy.sparse"


class ImportTime:
    """A fresh interpreter each time, started and ended, with the files in the page cache."""

    name = "import"
    title = "Import time: a process that imports and ends"
    threaded = False
    memory = False
    per = 1

    def variants(self, size: str) -> list[Variant]:
        return [{"label": "python -c 'import ...'"}]

    def expected(self, variant: Variant) -> Mapping[str, Expected]:
        return {}

    def candidates(self, variant: Variant) -> list[Candidate]:
        return [
            Candidate(OURS, partial(_process, "import sparsegrad"), role="ours"),
            Candidate("torch", partial(_process, "import torch"), needs="torch"),
            Candidate("jax", partial(_process, "import jax"), needs="jax"),
            Candidate("scipy.sparse", partial(_process, _SCIPY), role="reference"),
            Candidate("numpy", partial(_process, "import numpy"), role="reference"),
            Candidate("python alone", partial(_process, "pass"), role="reference"),
        ]


def _process(code: str) -> Callable[[], Any]:
    command = [sys.executable, "-c", code]
    return lambda: subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
