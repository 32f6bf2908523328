"""The command line: what it prints, writes and refuses."""

import contextlib
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import sparsegrad as sg
from sparsegrad.engine import primitive

pytest.importorskip("typer", reason="the command line is an extra")

from typer.testing import CliRunner

from sparsegrad import cli

ROOT = Path(__file__).resolve().parent.parent


def run(*args):
    return CliRunner().invoke(cli.app, [str(a) for a in args])


@pytest.fixture(autouse=True)
def small_graph(monkeypatch):
    small = sg.data.sbm(n=400, n_features=200, seed=0)
    monkeypatch.setattr(sg.data, "sbm", lambda: small)


def test_version():
    result = run("--version")
    assert (result.exit_code, result.stdout) == (0, f"sparsegrad {sg.__version__}\n")


def test_train_gcn():
    result = run("train", "gcn", "--epochs", 3)
    assert result.exit_code == 0, result.output
    lines = result.stdout.strip().splitlines()
    assert lines[0].startswith("Graph('sbm': 400 nodes")
    assert re.fullmatch(
        r"Test accuracy \d+\.\d %; \d+\.\d ms per epoch; stored sparse, the graph takes \S+ kB of "
        r"memory, as a dense matrix it would take 640 kB \(9\d\.\d % saved\)\.",
        lines[-1],
    )


def test_train_gat(tmp_path):
    file = tmp_path / "run.json"
    args = ("--epochs", 2, "--hidden", 2, "--heads", 3, "--patience", 7, "--json", file)
    result = run("train", "gat", *args)
    assert result.exit_code == 0, result.output
    assert result.stdout.strip().splitlines()[-1].startswith("Test accuracy ")
    record = json.loads(file.read_text())
    assert record["recipe"] == "gat"
    given = {"epochs": 2, "patience": 7, "hidden": 2, "heads": 3, "lr": 0.005}
    assert given.items() <= record["settings"].items() and record["runs"][0]["epochs"] == 2


SMALL = {
    "lightgcn": ("--epochs", 2, "--dim", 4, "--batch", 512, "--negatives", 16),
    "mf": ("--epochs", 2, "--dim", 4),
    "logreg": ("--l2", 2),
    "sparse-mlp": ("--epochs", 2, "--hidden", 8),
    "graphchallenge": (),
}


@pytest.mark.parametrize("name", SMALL)
def test_train_others(name, tmp_path):
    file = tmp_path / "run.json"
    result = run("train", name, *SMALL[name], "--json", file)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1].startswith("Test ")
    assert json.loads(file.read_text())["recipe"] == name


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("mf", "u\ti\tr\n" + "".join(f"{i % 5}\t{i}\t{i % 3}\n" for i in range(40)), "own.txt"),
        ("logreg", "".join(f"{i % 2} 1:{i} 3:2\n" for i in range(20)), "own.txt"),
    ],
)
def test_data_of_ones_own(name, text, told, tmp_path):
    file = tmp_path / "own.txt"
    file.write_text(text)
    result = run("train", name, "--data", file, "--epochs", 2)
    assert result.exit_code == 0 and f"({told!r}: " in result.stdout
    file.write_text(text + "x\n")
    result = run("train", name, "--data", file, "--epochs", 2)
    assert result.exit_code == 2 and result.stderr.count("\n") == 1
    assert re.search(r"own\.txt, line \d+: ", result.stderr)


@pytest.mark.parametrize("option", ["--epochs", "--patience", "--hidden", "--heads"])
def test_gat_errors_are_one_line(option):
    result = run("train", "gat", option, 0)
    assert result.exit_code == 2 and result.stderr.count("\n") == 1
    assert f"{option} must be at least 1, got 0" in result.stderr


def test_several_seeds():
    result = run("train", "gcn", "--epochs", 2, "--seeds", "0-2,1,5")
    assert result.exit_code == 0, result.output
    assert re.findall(r"^seed (\d)", result.stdout, re.M) == ["0", "1", "2", "5"]
    assert re.search(r"accuracy \d+\.\d\d ± \d+\.\d\d % \(mean of 4 runs\)", result.stdout)


def test_seed_changes_the_run_and_repeats_it():
    first, second, other = (
        re.search(r"test accuracy .*", run("train", "gcn", "--epochs", 4, "--seed", s).stdout)[0]
        for s in (1, 1, 2)
    )
    assert first == second != other


def test_json(tmp_path):
    file = tmp_path / "run.json"
    file.write_text("old")
    result = run("train", "gcn", "--epochs", 2, "--seeds", "3,4", "--lr", 0.02, "--json", file)
    assert result.exit_code == 0, result.output
    record = json.loads(file.read_text())
    given = {"epochs": 2, "patience": None, "hidden": 16, "lr": 0.02}
    assert given.items() <= record["settings"].items()
    assert [r["seed"] for r in record["runs"]] == [3, 4]
    mean = sum(r["test"]["accuracy"] for r in record["runs"]) / 2
    assert record["test"]["accuracy"]["mean"] == pytest.approx(mean)
    assert str(tmp_path) not in file.read_text() and str(ROOT) not in file.read_text()
    assert [p.name for p in tmp_path.iterdir()] == ["run.json"]


def test_log(tmp_path):
    file = tmp_path / "log.jsonl"
    result = run("train", "gcn", "--epochs", 2, "--seeds", "0-1", "--log", file)
    assert result.exit_code == 0, result.output
    head, *rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert head["recipe"] == "gcn" and head["settings"]["epochs"] == 2
    assert [(row["seed"], row.get("epoch")) for row in rows] == [
        (0, 1), (0, 2), (0, None), (1, 1), (1, 2), (1, None),
    ]  # fmt: skip
    assert set(rows[0]) == {"seed", "epoch", "loss", "val_loss", "val_accuracy"}
    assert set(rows[2]) == {"seed", "test", "best"}


def test_log_of_a_run_that_diverges(tmp_path):
    file, result = tmp_path / "log.jsonl", tmp_path / "run.json"
    args = ("--epochs", 3, "--lr", 1e30, "--log", file, "--json", result)
    assert run("train", "gcn", *args).exit_code == 0

    def strict(name):
        raise AssertionError(f"{name} is no JSON")

    rows = [json.loads(line, parse_constant=strict) for line in file.read_text().splitlines()]
    assert any(row.get("loss", 0) is None for row in rows)
    json.loads(result.read_text(), parse_constant=strict)


def test_plot(tmp_path):
    image = pytest.importorskip("matplotlib.image", reason="pictures need the extra `plot`")
    file = tmp_path / "curve.png"
    result = run("train", "gat", "--epochs", 3, "--hidden", 2, "--seeds", "0-1", "--plot", file)
    assert result.exit_code == 0, result.output
    pixels = image.imread(file)
    assert pixels.shape[0] > 300 and pixels.shape[1] > 600 and 0.5 < pixels.mean() < 1


def test_resume(tmp_path):
    """A run in two parts, and its log, are those of one."""
    log, folder = tmp_path / "log.jsonl", tmp_path / "runs"
    args = ("train", "gcn", "--seeds", "0-1", "--checkpoint", folder, "--log", log)
    whole = run(*args[:4], "--epochs", 5)
    assert run(*args, "--epochs", 3).exit_code == 0
    assert {p.name for p in folder.iterdir()} == {"seed-0.safetensors", "seed-1.safetensors"}
    refused = run(*args, "--epochs", 5)
    assert refused.exit_code == 2 and "seed-0.safetensors exists" in refused.stderr
    assert "lr = 0.01" in run(*args, "--resume", "--lr", 0.02).stderr
    resumed = run(*args, "--epochs", 5, "--resume")
    assert resumed.exit_code == 0, resumed.output
    assert resumed.stdout.splitlines()[:3] == whole.stdout.splitlines()[:3]
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    assert [row["epoch"] for row in rows if "epoch" in row] == [1, 2, 3, 4, 5] * 2


def test_a_file_without_a_split_gets_that_of_the_seed(tmp_path):
    rng = np.random.default_rng(0)
    y = np.arange(150) % 2
    edges = rng.integers(0, 150, (2, 300))
    file = tmp_path / "mine.npz"
    np.savez(file, edge_u=edges[0], edge_v=edges[1], x=rng.random((150, 4), "f4"), y=y)
    log = tmp_path / "log.jsonl"
    result = run("train", "gcn", "--data", file, "--epochs", 1, "--seeds", "0-1", "--log", log)
    assert result.exit_code == 0, result.output
    assert result.stdout.count("Graph('mine': 150 nodes") == 2
    losses = [row["loss"] for row in map(json.loads, log.read_text().splitlines()) if "loss" in row]
    assert len(set(losses)) == 2
    assert run("train", "gcn", "--epochs", 1, "--seeds", "0-1").stdout.count("Graph(") == 1


def test_interrupted(monkeypatch, tmp_path):
    def interrupt(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(sg.data, "sbm", interrupt)
    result = run("train", "gcn", "--checkpoint", tmp_path)
    assert result.exit_code == 130
    assert result.stderr == "interrupted; the same command with --resume goes on\n"
    assert run("train", "gcn").stderr == "interrupted\n"


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["--data", "corra"], "--data must be one of sbm, cora, citeseer, "),
        (["--data", "cora"], "SPARSEGRAD_DATA"),
        (["--device", "tpu"], "--device must be one of auto, cpu, cuda"),
        (["--device", "cuda"], "device cuda"),
        (["--seeds", "a-b"], "--seeds: expected 0-9 or 1,5,7, got 'a-b'"),
        (["--seeds", "9-0"], "names no seed"),
        (["--seed", "-1"], "must not be negative"),
        (["--epochs", "0"], "--epochs must be at least 1"),
        (["--hidden", "0"], "--hidden must be at least 1"),
        (["--lr", "nan"], "--lr must be greater than 0"),
        (["--json", "no/such/folder/x.json"], "--json: the folder of"),
        (["--json", "."], "is a folder"),
        (["--log", "no/such/folder/x.jsonl"], "--log: the folder of"),
        (["--plot", "no/such/folder/x.png"], "--plot: the folder of"),
        (["--plot", "x.txt"], "--plot: x.txt: no format 'txt'; there are "),
        (["--resume"], "--resume needs --checkpoint"),
        (["--save-every", "-1"], "--save-every must be at least 0"),
    ],
)
def test_errors_are_one_line(args, text, monkeypatch):
    monkeypatch.delenv("SPARSEGRAD_DATA", raising=False)
    if args == ["--device", "cuda"] and available("cuda"):
        pytest.skip("there is a GPU")
    result = run("train", "gcn", "--epochs", 1, *args)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    assert text in result.stderr


def available(device):
    try:
        sg.zeros(1).to(device)
    except sg.DeviceError:
        return False
    return True


def test_unknown_options_and_values():
    for args in (["--colour", "red"], ["--epochs", "many"]):
        result = run("train", "gcn", *args)
        assert result.exit_code == 2 and "Traceback" not in result.output


@pytest.mark.parametrize(
    "args", [[], ["train"], ["--help"], ["train", "gcn", "--help"], ["train", "gat", "--help"]]
)
def test_help(args):
    result = run(*args)
    assert result.exit_code in (0, 2)
    assert "Usage" in result.output


def test_warmup(monkeypatch):
    from sparsegrad.backends import cpu_jit_calls

    some = {name: cpu_jit_calls.kernels()[name] for name in ("segment_sum", "sum_counts")}
    monkeypatch.setattr(cpu_jit_calls, "kernels", lambda: some)
    result = run("warmup")  # float32 and float64, each with two index dtypes; and these alone
    assert result.exit_code == 0 and re.fullmatch(
        r"6 kernels are ready after \d+ s\n", result.stdout
    )


def test_info():
    result = run("info")
    assert result.exit_code == 0, result.output
    assert f"sparsegrad {sg.__version__}" in result.stdout
    for line in (
        r"cpu:$",
        r"  backend: \w+$",
        r"  threads: \d+ \(a pool of Python threads\)$",
        r"  blas: .+ \d+ threads",
        r"cuda:$",
        r"  available: (yes|no)$",
    ):
        assert re.search("^" + line, result.stdout, re.M), line


def test_info_says_where_compiled_kernels_are_and_why_there_is_no_gpu(monkeypatch):
    if sg.backends.for_device("cpu").name == "cpu_jit":
        found = json.loads(run("info", "--json").stdout)
        assert re.match(r"\d+ files, [\d.]+ MB in ", found["cpu"]["compiled kernels"])
    monkeypatch.setattr(sg.backends, "cuda_problem", lambda: "no device is visible")
    found = json.loads(run("info", "--json").stdout)
    assert found["sparsegrad"] == sg.__version__
    assert found["cuda"]["available"] is False
    assert found["cuda"]["problem"] == "no device is visible"


@pytest.mark.device
def test_info_about_a_device(device, monkeypatch, tmp_path):
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path))
    (tmp_path / "x.cubin").write_bytes(b"0" * 500_000)
    found = json.loads(run("info", "--json").stdout)["cuda"]
    assert found["available"] is True
    assert set(sg.cuda.describe()) < set(found)
    assert found["compiled kernels"] == f"1 files, 0.5 MB in {tmp_path}"
    assert re.fullmatch(r"nvrtc [\d.]+, cusparse [\d.]+", found["libraries"])
    monkeypatch.setattr(sg.backends, "cuda_problem", lambda: "no device is visible")
    found = json.loads(run("info", "--json").stdout)["cuda"]  # what is there nevertheless
    assert {"cupy", "nvrtc", "cublas", "cusparse"} == set(found["libraries"])
    assert "  libraries: cupy " in run("info").stdout


def test_check_gpu_without_one(monkeypatch):
    monkeypatch.setattr(sg.backends, "cuda_problem", lambda: "no device is visible")
    sg.backends._cuda.cache_clear()
    result = run("check-gpu")
    assert result.exit_code == 2
    assert result.stderr == "error: device cuda: no device is visible; use 'cpu' or 'auto'\n"
    result = run("check-gpu", "--device", "cpu")
    assert result.exit_code == 2 and "--device must be cuda" in result.stderr


@pytest.mark.device
def test_check_gpu(device, monkeypatch):
    """In one dtype, and of the kernels to compile only a few: the simulator's compiler is slow."""
    check = sys.modules["sparsegrad.cli.check_gpu"]
    from sparsegrad.backends import cuda_kernels as kernels
    from sparsegrad.cli.gpu_inputs import Case

    few = kernels.all_kernels()[:2]
    monkeypatch.setattr(kernels, "all_kernels", lambda: few)
    monkeypatch.setattr(check, "TOLERANCE", {"float32": 2e-5})
    with launched() as names, sg.profile() as prof:
        simulated = names is not None
        if simulated:  # it has no cuSOLVER
            cases = [case for case in check.CASES if case.name != "dense linear algebra"]
            monkeypatch.setattr(check, "CASES", cases)
        result = run("check-gpu", "--device", device)
    assert result.exit_code == 0, result.output
    assert "2 of 2 kernels compiled" in result.stdout
    assert all(case.name in result.stdout for case in check.CASES)
    assert result.stdout.endswith("no failures\n")
    ops = {name.removesuffix("_p") for name in primitive.registry}
    seen = {stats.name.removesuffix(" (sparse)") for stats in prof.ops if stats.device_seconds}
    solved = {"cholesky", "det", "eigh", "inv", "pinv", "qr", "slogdet", "solve", "svd"}
    assert ops - seen == (solved if simulated else set())
    if simulated:  # known there: together the cases run every kernel
        for family in kernels.INSTANCES.values():
            for name, instances in family.items():
                forms = {re.sub(r"\W+", "_", "_".join((name, *args))) for args in instances}
                assert forms & names, name

    broken = Case("broken", lambda t: sg.ones(2) * (1 + (t.device != "cpu")))
    raising = Case("raising", lambda t: t.leaf(2) @ t.leaf(3))
    monkeypatch.setattr(check, "CASES", (broken, raising))
    result = run("check-gpu", "--device", device, "--no-compile")
    assert result.exit_code == 1
    assert "broken, float32: differs by 1.0e+00, more than 2e-05" in result.stdout
    assert "raising, float32: ShapeError: " in result.stdout
    assert "2 failures" in result.stdout


@contextlib.contextmanager
def launched():
    """Names of the kernels that run inside; None on a GPU, which does not say."""
    names = set()
    simulator = sys.modules.get("cudasim")
    if not simulator or not simulator.installed():
        yield None
        return
    with simulator.record_launches() as launches:
        yield names
    names |= {re.sub(r"_[0-9a-f]{8}$", "", launch.kernel) for launch in launches}


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_the_extra(missing):
    script = (
        "import sys, importlib.abc\n"
        "class Block(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.partition('.')[0] == {missing!r}:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Block())\n"
        "from sparsegrad.cli import app\n"
        "app()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert 'pip install "sparsegrad-engine[cli]"' in done.stderr
    assert f"needs {missing}" in done.stderr


def test_module_runs_as_a_script():
    done = subprocess.run(
        [sys.executable, "-m", "sparsegrad.cli", "train", "gcn", "--device", "tpu"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and done.stderr.startswith("error: --device")
