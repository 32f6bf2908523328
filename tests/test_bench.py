"""The benchmark core on fake candidates and a fake clock: nothing here depends on real time."""

import importlib.util
import itertools
import json
import math
import statistics
import warnings

import numpy as np
import pytest

import sparsegrad as sg
from bench import __main__ as command
from bench import (
    bandwidth,
    chart,
    gpu,
    gpu_cases,
    gpu_measure,
    machine,
    peers,
    probe,
    report,
    scaling,
)
from bench import run as runner
from bench.cases import OURS, Candidate, all_cases
from bench.graphs import power_law
from bench.oracle import Expected, WrongResult, check
from bench.timer import AGAIN, Effort, Samples, Spread, Timer, paired

ONCE = Effort(warmup=0, min_rounds=1, max_rounds=1, budget_s=0, sample_s=0, settle_s=0)


class Clock:
    """Time that passes only when somebody works or sleeps."""

    def __init__(self):
        self.now, self.calls = 0.0, []

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds

    def work(self, name, seconds):
        """A function that takes `seconds`, a number or a list of them that is gone through."""
        turns = iter(seconds) if isinstance(seconds, list) else None

        def fn():
            self.calls.append(name)
            self.now += next(turns) if turns else seconds
            return name

        return fn


@pytest.fixture
def clock():
    return Clock()


def timer(clock, **effort):
    default = {"warmup": 1, "min_rounds": 4, "max_rounds": 6, "budget_s": 100.0}
    return Timer(
        Effort(**default | {"sample_s": 0.1, "settle_s": 0.5} | effort), clock, clock.sleep
    )


# ---- timer -------------------------------------------------------------------------------------
def test_long_calls_are_timed_one_by_one(clock):
    found = timer(clock).rounds({"a": clock.work("a", 1.0), "b": clock.work("b", 2.0)})
    assert list(found) == ["a", "b", AGAIN]
    assert found["a"].inner == found["b"].inner == 1
    assert found["a"].spread == Spread(1.0, 1.0, 1.0)
    assert found["b"].spread.median == pytest.approx(2.0)
    assert paired(found["a"], found["b"]).median == pytest.approx(2.0)
    assert paired(found["a"], found[AGAIN]).median == pytest.approx(1.0)


def test_short_calls_are_repeated_until_they_can_be_resolved(clock):
    found = timer(clock).rounds({"a": clock.work("a", 0.001)})
    assert found["a"].inner == pytest.approx(100, abs=1)
    assert found["a"].spread.median == pytest.approx(0.001)


def test_a_call_the_clock_cannot_see_ends(clock):
    found = timer(clock, sample_s=1e-5).rounds({"a": clock.work("a", 0.0)})
    assert found["a"].inner in (100, 101) and found["a"].spread.median == 0


def test_rounds_are_interleaved_and_nobody_keeps_a_neighbour(clock):
    t = timer(clock, warmup=0, min_rounds=40, max_rounds=40)
    t.rounds({name: clock.work(name, 1.0) for name in "abcd"})
    planning, rest = clock.calls[:4], clock.calls[4:]
    assert planning == list("abcd")
    rounds = [rest[i : i + 5] for i in range(0, 200, 5)]
    assert len(rest) == 200 and all(sorted(r) == list("aabcd") for r in rounds)
    followers = {(x, y) for r in rounds for x, y in itertools.pairwise(r)}
    assert len(followers) == 13  # every pair, "a" after itself included


def test_rounds_fill_the_budget(clock):
    for budget, rounds in ((0.0, 4), (23.0, 5), (1000.0, 6)):  # 4.4 s a round
        t = timer(clock, budget_s=budget, settle_s=0.0)
        found = t.rounds({"a": clock.work("a", 1.0), "b": clock.work("b", 2.0)})
        assert {len(s.seconds) for s in found.values()} == {rounds}


def test_much_slower_candidates_leave_early(clock):
    t = timer(clock, settle_s=0.0, budget_s=1e4)
    found = t.rounds({"a": clock.work("a", 1.0), "b": clock.work("b", 1000.0)})
    assert len(found["a"].seconds) == len(found[AGAIN].seconds) == 6
    assert len(found["b"].seconds) == 4
    assert len(t.rounds({"b": clock.work("b", 9.0), "a": clock.work("a", 1.0)})["b"].seconds) == 6
    assert paired(found["a"], found["b"]).median == pytest.approx(1000.0)


def test_the_first_call_is_apart(clock):
    fn = clock.work("a", [5.0] + [1.0] * 50)
    t = timer(clock)
    assert t.once(fn) == (5.0, "a")
    assert t.rounds({"a": fn})["a"].spread == Spread(1.0, 1.0, 1.0)


def test_ratios_are_taken_within_rounds():
    base = Samples((1.0, 10.0, 2.0))  # the machine was slow in the second round
    assert paired(base, Samples((3.0, 30.0, 6.0, 99.0))) == Spread(3.0, 3.0, 3.0)


def test_spread_is_median_and_quartiles():
    assert Spread.of([1, 2, 3, 4, 100]) == Spread(3.0, 2.0, 4.0)


def test_the_collector_is_off_while_timing_and_on_afterwards(clock):
    import gc

    seen = []
    Timer(ONCE, clock, clock.sleep).rounds({"a": lambda: seen.append(gc.isenabled())})
    assert seen and not any(seen) and gc.isenabled()
    assert timer(clock).rounds({}) == {}


# ---- oracle ------------------------------------------------------------------------------------
def test_right_results_pass():
    want = {"y": Expected(np.array([1.0, -2.0])), "z": Expected(np.zeros((2, 0)))}
    assert check({"y": np.float32([1, -2]), "z": np.zeros((2, 0))}, want) == 0


def test_errors_are_relative_to_the_scale():
    want = {"y": Expected(np.array([1e-9]), scale=np.array([1.0]))}  # terms that cancel
    assert check({"y": np.array([3e-7])}, want) == pytest.approx(3e-7, rel=0.01)


@pytest.mark.parametrize(
    ("got", "what"),
    [
        ({"y": np.array([1.0, 2.1])}, "relative error"),
        ({"y": np.array([1.0, np.nan])}, "relative error"),
        ({"y": np.array([1.0])}, "shape"),
        ({}, "results are"),
        ({"y": np.array([1.0, 2.0]), "z": np.zeros(1)}, "results are"),
    ],
)
def test_wrong_results_do_not(got, what):
    with pytest.raises(WrongResult, match=what), np.errstate(invalid="ignore"):
        check(got, {"y": Expected(np.array([1.0, 2.0]))})


# ---- a case of fakes ---------------------------------------------------------------------------
class Fake:
    name, title, threaded, memory, per = "fake", "A fake", False, False, 10

    def __init__(self, *candidates):
        self.found = candidates

    def variants(self, size):
        return [{"label": f"of size {size}"}]

    def expected(self, variant):
        return {"y": Expected(np.ones(2))}

    def candidates(self, variant):
        return list(self.found)


def candidate(clock, name, seconds, value=1.0, **options):
    work = clock.work(name, seconds)
    return Candidate(name, lambda: lambda: work(), lambda raw: {"y": np.full(2, value)}, **options)


def broken():
    raise RuntimeError("no such kernel\nand a long story")


@pytest.fixture
def entry(clock):
    case = Fake(
        candidate(clock, OURS, 2.0, role="ours"),
        candidate(clock, "slow", 6.0),
        candidate(clock, "fast", 1.0),
        candidate(clock, "wrong", 0.1, value=1.1),
        candidate(clock, "floor", 0.5, role="reference"),
        candidate(clock, "absent", 0.1, needs="torch"),
        candidate(clock, "large", 0.1, skip="needs 9 TiB"),
        Candidate("broken", broken),
    )
    variant = case.variants("tiny")[0]
    missing = {"torch": "not installed"}
    made = runner.run_variant(case, variant, case.expected(variant), timer(clock), missing)
    return made | {"threads": 2}


def row(entry, name):
    return next(r for r in entry["candidates"] if r["name"] == name)


def test_wrong_candidates_are_reported_and_not_timed(entry, clock):
    assert row(entry, "wrong")["status"] == "wrong" and "y:" in row(entry, "wrong")["reason"]
    assert "seconds" not in row(entry, "wrong") and clock.calls.count("wrong") == 1


def test_one_broken_candidate_is_one_row(entry):
    assert row(entry, "broken")["reason"] == "RuntimeError: no such kernel"
    assert row(entry, "broken")["status"] == "failed"


def test_absent_and_oversized_candidates_say_why(entry, clock):
    assert row(entry, "absent") == {
        "name": "absent",
        "role": "peer",
        "status": "left out",
        "reason": "not installed",
    }
    assert row(entry, "large")["reason"] == "needs 9 TiB"
    assert "absent" not in clock.calls and "large" not in clock.calls


def test_the_best_peer_is_the_fastest_right_one(entry):
    assert entry["best_peer"] == "fast"
    assert row(entry, "fast")["ratio"]["median"] == pytest.approx(0.5)
    assert row(entry, "slow")["ratio"]["median"] == pytest.approx(3.0)
    assert entry["noise"]["median"] == pytest.approx(1.0)
    assert row(entry, OURS)["first_s"] == 2.0 and row(entry, OURS)["error"] == 0


def test_nothing_of_ours_leaves_nothing_to_compare(clock):
    case = Fake(candidate(clock, OURS, 1.0, value=3.0, role="ours"), candidate(clock, "peer", 1.0))
    found = runner.run_variant(case, {}, case.expected({}), timer(clock), {})
    assert found["best_peer"] is None and "noise" not in found
    assert row(found, OURS)["status"] == "wrong" and row(found, "peer")["status"] == "timed"


# ---- report ------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def empty():
    return runner.run([], size="full", threads=[1], effort=ONCE, command="python -m bench cpu")


@pytest.fixture
def document(entry, empty):
    return empty | {"results": [entry, entry | {"threads": 1, "others": 1.5}]}


def test_json_is_read_back(document, tmp_path):
    path = tmp_path / "x.json"
    report.write_json(document, path)
    assert report.read(path)["results"][0]["best_peer"] == "fast"
    path.write_text(json.dumps(document | {"schema": 99}))
    with pytest.raises(ValueError, match="schema 99"):
        report.read(path)


def test_an_update_keeps_the_cases_that_did_not_run_again(document):
    old = document | {"results": [e | {"case": c} for e in document["results"] for c in ("a", "b")]}
    new = document | {"date": "later", "results": [document["results"][0] | {"case": "b"}]}
    found = report.updated(old, new)
    assert [e["case"] for e in found["results"]] == ["a", "a", "b"]
    assert [e.get("date") for e in found["results"]] == [document["date"]] * 2 + [None]


def test_traffic_is_compared_with_what_the_memory_gives(document):
    entry = document["results"][0] | {"traffic_bytes": 6e9}  # in two seconds
    rates = {"2": {"copy": 12e9, "gather": 6e9}}
    text = report.markdown(document | {"results": [entry], "bandwidth": rates})
    assert "memory, 2 threads: copy 12.0 GB/s, gather 6.0 GB/s" in text
    assert "we move 3.0 GB/s: 25% of a copy, 50% of a gather." in text


def test_chart(document, tmp_path):
    found = chart.ratios(document)
    best = {s["case"]: s["geometric_mean"] for s in report.summary(document)}
    means = [math.exp(statistics.fmean(map(math.log, values))) for values in found.values()]
    assert means == sorted(means, reverse=True)
    assert means == pytest.approx(sorted(best.values(), reverse=True))
    if importlib.util.find_spec("matplotlib"):
        chart.plot(document, tmp_path / "c.png")
        assert (tmp_path / "c.png").stat().st_size > 1000


def test_scaling(tmp_path):
    found = scaling.run([2_000, 4_000], [("random", 4), ("near", 3)], processes=1)
    assert [(s["columns"], s["width"]) for s in found["series"]] == [("random", 4), ("near", 3)]
    random, near = ([row["nnz"] for row in s["rows"]] for s in found["series"])
    assert random == [2_000, 4_000] and near == [10 * 6**3, 10 * 7**3]
    rows = [row for s in found["series"] for row in s["rows"]]
    assert all(row["step_s"] > 0 and row["take_s"] > 0 and 0.8 < row["saved"] < 1 for row in rows)
    assert scaling.text(found).count("slope of log time") == 2
    linear = [{"nnz": n, "step_s": 3e-9 * n} for n in (10, 100, 1000)]
    assert scaling.slope(linear) == pytest.approx(1)
    if importlib.util.find_spec("matplotlib"):
        scaling.plot(found, tmp_path / "s.png")
        assert (tmp_path / "s.png").stat().st_size > 1000


def test_scaling_says_what_failed(monkeypatch, capsys):
    row = {"nnz": 10**6, "step_s": 1.0, "take_s": 1.0, "first_s": 1.0, "saved": 0.5}
    row |= {"peak_bytes": 1, "sparse_bytes": 1}
    monkeypatch.setattr(scaling, "_row", lambda *of: row)
    assert command.main(["scaling", "--to", "1e6"]) == 0
    monkeypatch.setattr(scaling, "_row", lambda *of: {"nnz": 10**6, "failed": "no room"})
    assert command.main(["scaling", "--to", "1e6"]) == 1
    assert "1,000,000 entries: failed: no room" in capsys.readouterr().out


def test_scaling_between_neighbours():
    side, count = 8, 8**3
    cols = scaling._columns("near", 10 * count)
    assert (np.diff(cols) > 0).all()  # sorted, and distinct
    apart = abs(cols - np.arange(count)[:, None])
    assert np.minimum(apart, count - apart).max() == side * side + side + 1


def test_bandwidth_is_measured():
    found = bandwidth.measure(2, rows=1 << 10)
    assert set(found) == {"copy", "gather"} and min(found.values()) > 0


def test_every_loss_is_listed(document):
    # "fast" at 1 thread is no faster than at 2, so each entry has a loss of its own
    assert [peer["name"] for _, peer in report.losses(document)] == ["fast", "fast"]
    text = report.markdown(document)
    losses = text.partition("## Losses")[2]
    assert "| fake | of size tiny | 2 threads | fast | 0.50× [0.50–0.50] | 1.00×" in losses


def test_a_peer_counts_with_the_threads_it_is_best_with(document):
    two, one = document["results"]
    faster = [r | {"seconds": Spread(0.2, 0.1, 0.4).as_dict()} for r in one["candidates"][1:3]]
    changed = document | {"results": [two, one | {"candidates": [one["candidates"][0], *faster]}]}
    slow, fast = report.rivals(changed, two)
    assert (slow["name"], fast["name"]) == ("slow, 1 thread", "fast, 1 thread")
    assert slow["ratio"] == pytest.approx({"median": 0.1, "q1": 0.05, "q3": 0.2})
    assert [peer["name"] for peer in report.rivals(document, one)] == ["fast", "slow"]


def test_summary_is_per_case_and_thread_count(document):
    first = report.summary(document)[0]
    assert (first["case"], first["threads"], first["variants"]) == ("fake", 2, 1)
    assert first["geometric_mean"] == pytest.approx(0.5)


def test_markdown_has_every_candidate(document):
    text = report.markdown(document)
    assert "**fast** (best peer) | 1 s [1 s–1 s] | 0.50× [0.50–0.50] | 1 s | 100 ms |" in text
    assert "wrong: y: relative error 1.0e-01, allowed 1e-05" in text
    assert "fake, of size tiny: large: needs 9 TiB" in text
    assert text.count("Other processes kept 1.5 cores busy") == 1
    assert text.count("*floor*") == 2


def test_no_losses_no_peers(document):
    text = report.markdown(document | {"results": []})
    assert "no peer was faster" in text and "nothing to compare with" in text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.9996e-3, "1 ms"), (12.34, "12.3 s"), (1234.0, "1230 s"), (5e-10, "0.5 ns"), (0, "0 ns")],
)
def test_times_as_people_read_them(seconds, text):
    assert report._time(seconds) == text


def test_fingerprint_names_no_host_and_no_path():
    found = machine.fingerprint()
    assert found["cores"] >= 1 and found["versions"]["numpy"] == np.__version__
    text = json.dumps(found)
    assert not any(name and name in text for name in (machine.platform.node(), str(machine.ROOT)))


# ---- the cases of a GPU: what PyTorch has for them, here on the CPU ----
GPU_CASES = gpu_cases.all_cases(60, 300)


@pytest.mark.filterwarnings("ignore:Sparse")  # PyTorch's, about checks and about beta
@pytest.mark.parametrize("case", GPU_CASES, ids=lambda case: case.name)
def test_what_pytorch_is_measured_with_is_right(case):
    pytest.importorskip("torch")
    peers = [peer for peer in case.peers if peer.name.startswith("torch")]
    expected = result_of(case.make("cpu", "float64"), case.calls)
    gpu_measure.checked(case, result_of(case.make("cpu", "float32"), case.calls), expected)
    for peer in peers:
        if "float16" not in case.name:  # it has no such product on the CPU
            gpu_measure.checked(case, result_of(peer.make("cpu"), case.calls), expected)


def result_of(call, calls):
    for _ in range(calls - 1):
        call()
    return gpu_measure.on_host(call())


def test_a_peer_of_the_gpu_that_is_not_here_says_why(monkeypatch):
    monkeypatch.setattr(peers, "_import_error", lambda module: "not installed")
    assert gpu_measure.Peer("torch CSR", None).missing() == "not installed"
    assert gpu_measure.Peer("cupyx", None).missing() is None
    row = {
        "case": "spmm",
        "bytes": 0,
        "quartiles": [0.001, 0.003],
        "cpu_seconds": 0.02,
        **{name + "seconds": 0.002 for name in ("", "cold_", "host_", "first_", "with_transfers_")},
        "peers": {"cupyx": {"seconds": 0.001}, "torch CSR": {"missing": "not installed"}},
    }
    text = gpu.markdown(
        {
            "size": [60, 300],
            "machine": {"cpu": "A CPU", "threads": 2},
            "cuda": dict.fromkeys(("devices", "driver", "libraries", "cupy"), "x"),
            "limits": {"gather of rows": 1e9},
            "results": [row],
        }
    )
    assert "against A CPU, 2 threads. 60 nodes, 300 entries." in text
    assert "| spmm | cupyx | 1.000 ms | 0.50 |" in text
    assert "faster than us: 1 of 1." in text
    assert "Left out, PyTorch not installed: torch CSR." in text


# ---- the real cases, tiny ----------------------------------------------------------------------
@pytest.fixture
def without_peers(monkeypatch):
    monkeypatch.setattr(peers, "_import_error", lambda module: "not installed")


@pytest.mark.parametrize("name", list(all_cases()))
def test_case_runs_without_peers(name, without_peers, monkeypatch):
    monkeypatch.setattr(probe, "measure", lambda *args: {"failed": "not now"})
    with warnings.catch_warnings(action="ignore"):
        found = runner.run([all_cases()[name]], size="tiny", threads=[1, 2], effort=ONCE)
    assert [p["missing"] for p in found["peers"]] == ["not installed"] * len(peers.PEERS)
    for entry in found["results"]:
        assert row(entry, OURS)["status"] == "timed", row(entry, OURS)
        assert {r["status"] for r in entry["candidates"]} <= {"timed", "left out"}
        assert entry["best_peer"] is None
    assert "PyTorch: not installed" in report.markdown(found)


@pytest.mark.parametrize("name", ["spmm", "spmm-grad", "tape"])
def test_every_peer_that_is_here_is_right(name):
    found = runner.run([all_cases()[name]], size="tiny", threads=[1], effort=ONCE, memory=False)
    for r in found["results"][0]["candidates"]:
        assert r["status"] in ("timed", "left out"), r


def test_memory_is_measured_in_a_process_of_its_own():
    case = all_cases()["spmm-grad"]
    small = case.variants("tiny")[0]
    large = {"label": "", "n": 20_000, "nnz": 40_000, "k": 32}
    found = probe.measure(case.name, large, OURS, small, threads=1)
    assert found["cold_start_s"] > 0
    if found["steady_bytes"] is not None:  # Linux
        results = 2 * 20_000 * 32 * 4 + 40_000 * 4
        assert 0.9 * results < found["steady_bytes"] < 4 * results
    assert "StopIteration" in probe.measure(case.name, small, "nobody", small, 1)["failed"]


def test_thread_counts_are_set_and_restored():
    from sparsegrad.backends import cpu_jit

    before = cpu_jit.get_num_threads()
    with machine.set_threads(3, torch=False) as said:
        assert said["sparsegrad"] == cpu_jit.get_num_threads() == 3
    assert cpu_jit.get_num_threads() == before


def test_power_law():
    a = power_law(500, 3000)
    assert a.shape == (500, 500) and a.nnz == 3000 and a.has_canonical_format
    assert np.diff(a.indptr).max() > 8 * 3000 / 500 and abs(a - power_law(500, 3000)).max() == 0
    with pytest.raises(ValueError, match="do not fit"):
        power_law(10, 80)


# ---- command line ------------------------------------------------------------------------------
def test_command_writes_json_and_markdown(tmp_path, without_peers, monkeypatch, capsys):
    monkeypatch.setattr(command, "QUICK", ONCE)
    files = [str(tmp_path / "x.json"), str(tmp_path / "x.md")]
    arguments = ["cpu", "--quick", "--case", "tape", "--json", files[0], f"--markdown={files[1]}"]
    assert command.main(arguments) == 0
    assert capsys.readouterr().out == ""
    found = report.read(files[0])
    assert found["command"] == "python -m bench cpu --quick --case tape"
    assert command.main(["table", files[0]]) == 0
    table = capsys.readouterr().out
    assert table.startswith("# Benchmarks") and "PyTorch: not installed" in table


def test_command_lists(capsys):
    assert command.main(["list"]) == 0
    listed = capsys.readouterr().out
    assert all(text in listed for text in ("spmm-grad", "- epoch of GAT", "peer PyTorch"))


def test_without_a_gpu_the_reason_is_said(monkeypatch, capsys):
    monkeypatch.setattr(sg.backends, "cuda_problem", lambda: "no device is visible")
    sg.backends._cuda.cache_clear()
    assert command.main(["gpu", "--quick"]) == 2
    assert capsys.readouterr().err.startswith("bench gpu: device cuda: no device is visible")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--case", "nothing"], "no case 'nothing'; known: spmm, "),
        (["--threads", "1,x"], "expected positive numbers such as 1,2; got '1,x'"),
        (["--json", "no/such/place.json"], "--json: no directory 'no/such'"),
    ],
)
def test_bad_arguments_are_named(arguments, text, capsys):
    with pytest.raises(SystemExit) as error:
        command.main(["cpu", *arguments])
    assert error.value.code == 2 and text in capsys.readouterr().err
