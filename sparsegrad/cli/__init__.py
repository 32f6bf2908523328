"""The `sparsegrad` command: train a model on a data set, say what is installed.

recipes.py    which recipes there are: a new one is registered here
data.py       what `--data` names
command.py    a recipe as a command: its options, and their checks
training.py   runs one seed after the other: progress, logs, checkpoints
report.py     what a run is said to have given: lines, JSON, a picture
info.py       `sparsegrad info`
warmup.py     `sparsegrad warmup`
check_gpu.py  `sparsegrad check-gpu`
gpu_cases.py  the ops that it compares (gpu_cases_dense.py, on numbers of gpu_inputs.py)
"""

from __future__ import annotations

import sys
from typing import Any, NoReturn

__all__ = ["app"]

app: Any
try:
    import rich  # noqa: F401
    import typer  # noqa: F401
except ImportError as _error:  # an extra: the engine does without
    _missing = _error.name

    def app() -> NoReturn:
        """Say what is missing."""
        sys.stderr.write(
            f"error: the command line needs {_missing}, which is not installed; "
            'pip install "sparsegrad-engine[cli]"\n'
        )
        sys.exit(2)
else:
    from sparsegrad.cli.application import app
