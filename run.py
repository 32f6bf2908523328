#!/usr/bin/env python3
"""From a fresh checkout to a result: needs Python 3.11+ and pip, and does all the set-up itself.

python3 run.py train [args]   train a graph network; args go to `sparsegrad train gcn`
python3 run.py test [args]    run the tests; args go to pytest (`--device=cuda`, `-k spmm`, ...)
python3 run.py lint           ruff, mypy and import-linter

Everything is installed into .venv beside this file, once, and again when pyproject.toml changes.
To use an environment of your own instead: pip install -e '.[test,lint]', then pytest.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
BIN = VENV / ("Scripts" if os.name == "nt" else "bin")
PYTHON = BIN / ("python.exe" if os.name == "nt" else "python")
STAMP = VENV / "set-up"  # lines: where .venv was made, digest of pyproject.toml, extras installed

LINTERS = (
    ("ruff", "check"),
    ("ruff", "format", "--check"),
    ("mypy",),
    ("lint-imports",),
)


def main(command="", *args):
    """Run one of the commands of this file's docstring and return its exit status."""
    if command == "train":
        set_up("cli")
        return call(BIN / "sparsegrad", "train", "gcn", *args)
    if command == "test":
        devices = devices_in(args)
        set_up("test", *device_extras(devices))
        # On a GPU the workers would fight over its memory, so there is one process.
        workers = "0" if "cuda" in devices else "auto"
        return call(PYTHON, "-m", "pytest", "-n", workers, "--maxprocesses=4", *args)
    if command == "lint" and not args:
        set_up("test", "lint")
        return max([call(BIN / tool, *options) for tool, *options in LINTERS])
    print(__doc__)
    return 0 if command in ("-h", "--help", "help") else 2


def devices_in(args):
    """The kinds of device in pytest's `--device`: {cpu, cuda} for `--device=cpu,cuda:0`."""
    values = re.findall(r"--device[= ](\S+)", " ".join(args))
    return {name.partition(":")[0] for value in values for name in value.split(",")}


def device_extras(devices):
    """The extras of pyproject.toml that those devices need beside `test`."""
    extras = {"cuda": os.environ.get("SPARSEGRAD_CUDA", "cuda12"), "cuda-sim": "cuda-test"}
    return [extra for device, extra in extras.items() if device in devices]


def set_up(*extras):
    """Install the package into .venv, editable, with these extras, unless that is done already."""
    digest = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()
    done = STAMP.read_text().splitlines() if STAMP.exists() and PYTHON.exists() else []
    usable, current = done[:1] == [str(ROOT)], done[:2] == [str(ROOT), digest]
    if current and set(extras) <= set(done[2:]):
        return
    wanted = sorted({*extras, *(done[2:] if usable else ())})
    print(f"Setting up .venv with {', '.join(wanted)} (once; a minute or two) ...", flush=True)
    if not usable:
        make_venv()
    package = f"{ROOT}[{','.join(wanted)}]"
    need(PYTHON, "-m", "pip", "install", "--quiet", "--editable", package)
    STAMP.write_text("\n".join([str(ROOT), digest, *wanted, ""]))


def make_venv():
    """An empty environment in .venv, with pip in it."""
    shutil.rmtree(VENV, ignore_errors=True)
    try:
        import ensurepip  # noqa: F401  (some distributions leave it out)
    except ImportError:
        need(sys.executable, "-m", "venv", "--without-pip", VENV)
        need(sys.executable, "-m", "pip", "--python", VENV, "install", "--quiet", "pip")
    else:
        need(sys.executable, "-m", "venv", VENV)


def need(*command):
    """`call`, and stop if it fails."""
    status = call(*command)
    if status:
        sys.exit(f"run.py: set-up failed (exit status {status}): {' '.join(map(str, command))}")


def call(*command):
    """Run a command in the root of the repository and return its exit status."""
    return subprocess.run([str(part) for part in command], cwd=str(ROOT)).returncode


def newer_python():
    """The path of a Python that is new enough, or None."""
    found = [shutil.which(f"python3.{minor}") for minor in range(11, 20)]
    return next((path for path in found if path), None)


if __name__ == "__main__":
    if sys.version_info < (3, 11):  # noqa: UP036  (the `python3` of the reader may be older)
        other = newer_python()
        if other is None:
            sys.exit("run.py: needs Python 3.11 or newer, this is " + sys.version.split()[0])
        sys.exit(call(other, __file__, *sys.argv[1:]))
    sys.exit(main(*sys.argv[1:]))
