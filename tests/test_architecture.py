"""What keeps the project in shape: file size, lazy imports, honest public names, packaging.

The layers themselves are import-linter's contracts in pyproject.toml (`run.py lint`).
"""

import ast
import importlib
import importlib.metadata
import inspect
import io
import pkgutil
import re
import subprocess
import sys
import tokenize
import tomllib
import types
import zipfile
from pathlib import Path

import pytest

import sparsegrad as sg

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "sparsegrad"
CEILING = 400  # lines of code a file
MODULES = sorted(path.relative_to(ROOT).as_posix() for path in PACKAGE.rglob("*.py"))

# Not imported by `import sparsegrad`: each is slow to import, optional, or a peer.
LAZY = {"cupy", "cupyx", "jax", "llvmlite", "matplotlib", "numba", "rich", "torch", "typer"}


def ops_modules():
    ops = importlib.import_module("sparsegrad.ops")
    return [f"sparsegrad.ops.{info.name}" for info in pkgutil.iter_modules(ops.__path__)]


PUBLIC_MODULES = ["sparsegrad", *ops_modules()]


# --- files -------------------------------------------------------------------------------------


def lines_of_code(source):
    """Lines that hold code: neither blank, nor comment, nor docstring."""
    code = set()
    silent = {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    }
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in silent:
            code.update(range(token.start[0], token.end[0] + 1))
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            code.difference_update(range(docstring.lineno, docstring.end_lineno + 1))
    return len(code)


def test_lines_of_code_counts_code_only():
    source = """
'''Doc of
the module.'''

# comment
x = '''a
b'''

def f():
    'Doc.'
    return (
        x  # three lines
    )
"""
    assert lines_of_code(source) == 6


@pytest.mark.parametrize("module", MODULES)
def test_file_is_short(module):
    count = lines_of_code((ROOT / module).read_text(encoding="utf-8"))
    assert count <= CEILING


# --- imports -----------------------------------------------------------------------------------


def test_import_is_light():
    script = "import sys, sparsegrad; print(*{name.partition('.')[0] for name in sys.modules})"
    run = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert LAZY & set(run.stdout.split()) == set()


@pytest.mark.parametrize(
    "module", [path for path in MODULES if not path.startswith("sparsegrad/backends/cuda")]
)
def test_module_imports(module):
    importlib.import_module(module.removesuffix(".py").removesuffix("/__init__").replace("/", "."))


@pytest.mark.parametrize("module", MODULES)
def test_only_the_top_layers_import_the_public_api(module):
    """A lower layer that imports `sparsegrad` itself would reach every layer through it."""
    if module.startswith(("sparsegrad/cli", "sparsegrad/recipes")):
        return
    for node in ast.walk(ast.parse((ROOT / module).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            assert "sparsegrad" not in [alias.name for alias in node.names], node.lineno
        if isinstance(node, ast.ImportFrom) and not node.level and node.module == "sparsegrad":
            submodules = [info.name for info in pkgutil.iter_modules([str(PACKAGE)])]
            assert {alias.name for alias in node.names} <= set(submodules), node.lineno


# --- public names ------------------------------------------------------------------------------


def documentation(value):
    """A class or function has its own docstring; any other object may have that of its class."""
    if isinstance(value, type | types.FunctionType | types.ModuleType):
        return value.__doc__
    return inspect.getdoc(value)


def literal_all(module):
    """`__all__` as the source lists it, without the `__all__ += ops.__all__` that may follow."""
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            if ast.unparse(target) == "__all__":
                return ast.literal_eval(node.value)
    raise AssertionError("no __all__")


# Examples would need what need not be there: PyTorch, data sets. Or take seconds.
WITHOUT_EXAMPLE = {
    *("calibrate", "from_torch", "to_torch", "read_graph", "read_network"),
    *("a9a", "amazon", "coauthor", "gowalla", "graphchallenge", "heterophilous", "movielens"),
    "planetoid",
}


@pytest.mark.parametrize(
    "space", [sg, sg.nn, sg.nn.init, sg.optim, sg.amp, sg.data], ids=lambda m: m.__name__
)
def test_public_callables_have_examples(space):
    """Which run as doctests, so they are true; a layer may name the function that has one. Errors
    and the tuples that ops return need none."""
    found = {name: getattr(space, name) for name in space.__all__}
    found = {name: value for name, value in found.items() if callable(value)}
    assert found
    for name, value in found.items():
        if isinstance(value, type) and issubclass(value, BaseException | tuple):
            continue
        texts = [documentation(value) or ""]
        texts += [getattr(sg, other).__doc__ for other in re.findall(r"see `sg\.(\w+)`", texts[0])]
        assert any(">>> " in text for text in texts) != (name in WITHOUT_EXAMPLE), name


@pytest.mark.parametrize("module", PUBLIC_MODULES)
def test_all_is_sorted_and_true(module):
    module = importlib.import_module(module)
    if module is not sg:
        assert list(module.__all__) == literal_all(module)
    assert literal_all(module) == sorted(literal_all(module))
    assert len(module.__all__) == len(set(module.__all__))
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


@pytest.mark.parametrize("module", PUBLIC_MODULES)
def test_public_names_have_docstrings(module):
    module = importlib.import_module(module)
    assert (module.__doc__ or "").strip(), "the module itself"
    bare = [name for name in module.__all__ if not documentation(getattr(module, name))]
    assert bare == []


def test_package_exports_nothing_by_accident():
    public = {
        name
        for name, value in vars(sg).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert sorted(public - set(sg.__all__) - {"annotations"}) == []


# --- packaging ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_metadata(project):
    assert project["name"] == "sparsegrad-engine"
    assert project["requires-python"] == ">=3.11"
    assert project["license"] == "MIT"
    assert sorted(d.partition(">")[0] for d in project["dependencies"]) == [
        "numba",
        "numpy",
        "scipy",
        "threadpoolctl",
    ]
    assert sg.__version__ == project["version"]


def test_installed_distribution(project):
    try:
        installed = importlib.metadata.distribution("sparsegrad-engine")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("runs from the source tree, nothing is installed")
    assert installed.version == project["version"]
    assert set(project["optional-dependencies"]) <= set(
        installed.metadata.get_all("Provides-Extra")
    )
    scripts = {entry.name: entry.value for entry in installed.entry_points}
    assert scripts["sparsegrad"] == "sparsegrad.cli:app"


def test_wheel_is_complete(tmp_path):
    wheel_builder = pytest.importorskip("hatchling.builders.wheel").WheelBuilder
    (wheel,) = wheel_builder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    names = set(zipfile.ZipFile(wheel).namelist())

    sources = [path for path in (ROOT / "kernels").rglob("*") if path.suffix in (".cu", ".cuh")]
    assert sources
    kernels = {
        f"sparsegrad/_kernels/{path.relative_to(ROOT / 'kernels').as_posix()}" for path in sources
    }
    assert ({*MODULES, "sparsegrad/py.typed"} | kernels) - names == set()
    assert [name for name in names if "/_kernels/" in name and name.endswith(".py")] == []
    assert {name.partition("/")[0] for name in names} == {
        "sparsegrad",
        f"sparsegrad_engine-{sg.__version__}.dist-info",
    }
