"""Settings for formats and guards, the cost table, and what answers from it."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest

import sparsegrad as sg
from sparsegrad.structure import cost

FORMATS = ("coo", "csr", "csc")


@pytest.fixture
def table():
    """Whatever table a test puts in use, the shipped one is back afterwards."""
    yield cost.TABLE
    cost.use_table(cost.TABLE)


def uniform(**changes):
    row = {"first": [1, 0, 0], "product": [1, 0, 0], "transposed": [1, 0, 0]}
    base = {name: dict(row) for name in (*FORMATS, "dense")}
    for name, kinds in changes.items():
        base[name] |= kinds
    return base


# ---- settings ----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("format", "ell", "format must be one of .*'ell'"),
        ("sparsity_threshold", 1.5, r"sparsity_threshold must be in \[0, 1\], got 1.5"),
        ("auto_convert_threshold", -0.1, r"auto_convert_threshold must be in \[0, 1\]"),
        ("min_nnz_for_sparse", -1, "min_nnz_for_sparse must be >= 0, got -1"),
    ],
)
def test_settings_are_checked(setting, value, message):
    with pytest.raises(ValueError, match=message):
        sg.config(**{setting: value}).__enter__()


def test_settings_are_those_of_the_design():
    assert (sg.config.format, sg.config.sparsity_threshold) == ("auto", 0.3)
    assert (sg.config.min_nnz_for_sparse, sg.config.auto_convert_threshold) == (100, 0.2)
    assert sg.config.check_invariants is False


def test_settings_belong_to_the_thread():
    seen = []
    with sg.config(format="csc"):
        thread = threading.Thread(target=lambda: seen.append(sg.config.format))
        thread.start()
        thread.join()
        assert sg.config.format == "csc"
    assert seen == ["auto"]


def test_auto_format():
    A = sg.coo([[0, 1], [1, 0]], [1.0, 2.0], (2, 2))
    for fmt in FORMATS:
        with sg.config(format=fmt):
            assert A.to("auto").format == fmt
            assert A.to_dense().to_sparse("auto").format == fmt
            assert sg.from_dense(A.to_dense(), "auto").format == fmt
            assert sg.coo([[0], [1], [1]], [1.0], (2, 2, 2)).to("auto").format == "coo"
    assert A.to("auto").format == sg.policy.best_format((2, 2), 2)
    assert A.to_dense().to_sparse().format == "coo"  # PyTorch's default, whatever the setting


def test_check_invariants_finds_what_a_skipped_check_let_in():
    broken = {
        "coo": lambda: sg.coo([[5], [0]], [1.0], (2, 2), check=False),
        "negative": lambda: sg.coo([[-1], [0]], [1.0], (2, 2), check=False),
        "csr": lambda: sg.csr([0, 1, 1], [7], [1.0], (2, 2), check=False),
        "csc": lambda: sg.csc([0, 2, 1], [0], [1.0], (2, 2), check=False),
    }
    for make in broken.values():
        A = make()
        with pytest.raises(sg.PatternError):
            A.check_invariants()
        with sg.config(check_invariants=True), pytest.raises(sg.PatternError):
            make()
    A = sg.csr([0, 1, 2], [1, 0], [1.0, 2.0], (2, 2))
    with sg.config(check_invariants=True):
        assert ((A + A.T) @ sg.ones(2)).tolist() == [3.0, 3.0]
    assert A.check_invariants() is A


def test_check_invariants_finds_values_that_do_not_line_up():
    A = sg.coo([[0], [1]], [1.0], (2, 2))
    A.values = sg.ones(3)
    with pytest.raises(sg.ShapeError, match=r"1 entries, values of shape \(3,\)"):
        A.check_invariants()


# ---- sparse or dense ---------------------------------------------------------------------------
def test_should_use_sparse_thresholds():
    x = np.zeros((100, 100), np.float32)
    x.flat[:7000] = 1
    for given in (x, sg.tensor(x), sg.tensor(x).to_sparse(), x.tolist()):
        assert sg.should_use_sparse(given)
        with sg.config(sparsity_threshold=0.31):
            assert not sg.should_use_sparse(given)
    assert not sg.should_use_sparse(x, estimated_nnz=7001)
    x[:] = 0
    x.flat[:99] = 1
    assert not sg.should_use_sparse(x)
    with sg.config(min_nnz_for_sparse=99):
        assert sg.should_use_sparse(x)


def test_should_use_sparse_never_advises_a_large_dense_array_for_few_entries():
    assert sg.should_use_sparse((10**6, 10**6), 10)
    A = sg.coo([[0], [1]], [1.0], (10**6, 10**6))
    assert sg.should_use_sparse(A)
    with sg.config(densify_budget=10**13):
        assert not sg.should_use_sparse(A)


def test_should_use_sparse_of_nothing_and_of_nonsense():
    assert not sg.should_use_sparse((0, 5), 0)
    assert not sg.should_use_sparse(sg.zeros(0, 3))
    with pytest.raises(sg.ShapeError, match="estimated_nnz is needed"):
        sg.should_use_sparse((3, 3))
    with pytest.raises(sg.ShapeError, match=r"estimated_nnz must be in \[0, 9\] .* got 10"):
        sg.should_use_sparse((3, 3), 10)


# ---- the cost table ----------------------------------------------------------------------------
def test_shipped_table_is_whole(table):
    assert table["measured"]
    for name in FORMATS:
        assert set(table[name]) == {"first", "product", "transposed"}
    assert sg.policy.best_format((10**5, 10**5), 10**6) == "csr"
    assert sg.policy.best_format((5,), 3) == "coo"
    assert sg.policy.best_layout((4, 4, 4), 3) == "coo"


def test_cheapest_format_wins_by_more_than_the_margin(table):
    for name in ("coo", "csc"):
        cost.use_table(uniform(**{name: {"product": [0.1, 0, 0]}}))
        assert sg.policy.best_format((10, 10), 20) == name
        cost.use_table(uniform(**{name: {"product": [0.9, 0, 0]}}))
        assert sg.policy.best_format((10, 10), 20) == "csr"
    cost.use_table(uniform(coo={"first": [0, 0, 0]}, csr={"first": [900, 0, 0]}))
    assert sg.policy.best_format((10, 10), 20, uses=1) == "coo"  # index work is paid once
    assert sg.policy.best_format((10, 10), 20, uses=10_000) == "csr"
    cost.use_table(uniform(csc={"transposed": [0.1, 0, 0]}))
    assert sg.policy.best_format((10, 10), 20, backward=True) == "csc"
    assert sg.policy.best_format((10, 10), 20, backward=False) == "csr"


def test_crossover(table):
    free = {"first": [0, 0, 0], "transposed": [0, 0, 1]}
    cost.use_table(
        uniform(
            **{name: free | {"product": [0, 0, 1]} for name in FORMATS},
            dense={"product": [0, 0, 0.25]},
        )
    )
    assert sg.policy.crossover_density((100, 100)) == pytest.approx(0.25)
    cost.use_table(uniform(dense={"product": [0, 0, 0]}))
    assert sg.policy.crossover_density((100, 100)) == 0.0
    cost.use_table(uniform(dense={"product": [1e9, 0, 0]}))
    assert sg.policy.crossover_density((100, 100)) == 1.0
    with pytest.raises(sg.ShapeError, match="needs a matrix"):
        sg.policy.crossover_density((2, 2, 2))


@pytest.mark.parametrize(
    "broken",
    [{}, uniform(csr={"product": [1, 2]}), uniform(coo={"first": [-1, 0, 0]}), {"csr": 3}],
)
def test_broken_table_is_refused(table, tmp_path, broken):
    with pytest.raises(ValueError, match="cost table"):
        cost.use_table(broken)
    assert cost.table() is table
    (tmp_path / "t.json").write_text(json.dumps(broken))
    with pytest.raises(ValueError, match="cost table"):
        sg.policy.load_calibration(tmp_path / "t.json")
    (tmp_path / "t.json").write_text("[1]")
    with pytest.raises(ValueError, match="no cost table"):
        sg.policy.load_calibration(tmp_path / "t.json")


def test_calibrate_measures_and_is_read_back(table, tmp_path, monkeypatch):
    monkeypatch.setattr(sg.policy, "_GRID", ((16, 2, 1), (64, 4, 8), (256, 2, 4)))
    monkeypatch.setattr(sg.policy, "_DENSE", ((16, 1), (64, 8), (128, 4)))
    found = sg.calibrate(tmp_path / "t.json", repeats=2)
    assert cost.table() is found
    assert found["csr"]["product"][0] > 0
    cost.use_table(table)
    assert sg.policy.load_calibration(tmp_path / "t.json") == found
    assert cost.table() == found
    assert sg.policy.best_format((100, 100), 300) in FORMATS


# ---- nearly full matrices ----------------------------------------------------------------------
@pytest.fixture
def taken(monkeypatch):
    """How often the dense temporary was used, with its sizes made small."""
    from sparsegrad.backends import nearly_full

    calls = []
    original = nearly_full.spmm

    def spy(*args):
        out = original(*args)
        calls.append(out is not None)
        return out

    monkeypatch.setattr(nearly_full, "MIN_WIDTH", 1)
    monkeypatch.setattr(nearly_full, "_MIN_WORK", 0)
    monkeypatch.setattr(nearly_full, "spmm", spy)
    return calls


@pytest.mark.parametrize("backend", ["cpu", "cpu_jit"])
@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_nearly_full_products_equal_sparse_ones(taken, backend, fmt, dtype):
    rng = np.random.default_rng(0)
    dense = rng.standard_normal((9, 7)).astype(dtype)
    dense[0, 0] = dense[3, 2] = 0
    where = np.array(np.nonzero(dense))[:, rng.permutation(61)]
    double = np.concatenate((where, where[:, :3]), axis=1)
    x = sg.tensor(rng.standard_normal((7, 4)).astype(dtype))
    for coords in (where, double):
        values = dense[tuple(coords)]
        A = sg.coo(coords, values, (9, 7)).to(fmt)
        with sg.config(backend=backend):
            y = A @ x
            z = A.T @ (A @ x)
        with sg.config(backend="reference"):
            np.testing.assert_allclose(y.data, (A @ x).data, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(z.data, (A.T @ (A @ x)).data, rtol=1e-4, atol=1e-5)
    assert taken == [True] * 6


@pytest.mark.parametrize("backend", ["cpu", "cpu_jit"])
def test_nearly_full_leaves_infinities_alone_and_obeys_the_setting(taken, backend):
    A = sg.from_dense(np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 0.0]], np.float32), "csr")
    x = sg.tensor([[1.0], [1.0], [np.inf]])
    with sg.config(backend=backend):
        assert (A @ x).tolist() == [[np.inf], [9.0]]  # the absent entry meets no infinity
        assert not any(taken)
        A @ sg.ones(3, 1)
        assert taken[-1]
        with sg.config(auto_convert_threshold=0.1):  # one cell in six is not stored
            A @ sg.ones(3, 1)
        assert not taken[-1]
        with sg.config(auto_convert_threshold=0), sg.densify(0):
            A @ sg.ones(3, 1)
        assert not taken[-1]
