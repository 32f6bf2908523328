"""How a sparse tensor shows itself."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

import sparsegrad as sg
from sparsegrad import display

FORMATS = ("coo", "csr", "csc")


def matrix(fmt="coo"):
    where = [[3, 0, 3, 1, 0], [1, 2, 1, 0, 0]]
    return sg.coo(where, [1.0, 2.0, 3.0, 0.0, 5.0], (4, 4)).to(fmt)


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("turned", [False, True])
def test_first_entries_are_the_tensors(fmt, turned):
    for A in (matrix(fmt), matrix(fmt).to("coo"), matrix(fmt).coalesce()):
        A = A.T if turned else A
        shown = display.first_entries(A, 99)
        places = [tuple(int(c[e]) for c in A.pattern.coords) for e in range(A.nnz)]
        assert [place for place, _ in shown] == places
        assert [float(text) for _, text in shown] == A.values.tolist()


def test_text():
    A = matrix("csr").requires_grad_()
    assert repr(A) == (
        "SparseTensor(shape=(4, 4), nnz=5, density=0.312, format='csr', dtype=float32, "
        "device='cpu', requires_grad=True,\n             (0, 0): 5., (0, 2): 2., (1, 0): 0., ...)"
    )
    assert "grad_fn=<mul>" in repr(A * 2)
    empty = repr(sg.coo([[], []], [], (0, 3)))
    assert empty.endswith("nnz=0, density=0, format='coo', dtype=float32, device='cpu')")
    hybrid = repr(sg.coo([[7]], sg.ones(1, 1000), (9, 1000)))
    assert "dense_dims=1" in hybrid
    assert hybrid.endswith("(7,): [1., 1., ..., 1., 1.])")
    assert "(1, 1, 1): True" in repr(sg.coo([[1]] * 3, [True], (2, 2, 2)))


@pytest.mark.parametrize("fmt", FORMATS)
def test_text_of_a_large_tensor_is_cheap(fmt):
    n = 10**6
    A = sg.coo([np.arange(n), np.arange(n)], None, (n, n)).to(fmt)
    tracemalloc.start()
    text, page = repr(A), A._repr_html_()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert text.count("\n") == 1
    assert len(text) < 300
    assert f"{n - 10:,} more" in page
    assert peak < 100_000


def test_html_is_escaped_and_whole():
    page = (matrix("csc").requires_grad_() * 2)._repr_html_()
    assert "&lt;mul&gt;" in page
    assert page.count("<table>") == page.count("</table>") == 2
    assert page.count("<tr>") == page.count("</tr>")


def test_density_grid_counts_every_entry():
    rng = np.random.default_rng(0)
    for shape in ((7, 5), (2000, 30), (10**6, 10**6), (1, 10**5)):
        where = [rng.integers(0, n, 300) for n in shape]
        A = sg.coo(where, None, shape)
        for fmt in FORMATS:
            grid = display.density_grid(A.to(fmt), 100)
            assert grid.shape == tuple(min(n, 100) for n in shape)
            assert grid.sum() == 300
    expected = (matrix().to_dense().data != 0) * 1
    expected[1, 0], expected[3, 1] = 1, 2  # an explicit zero, a duplicate
    np.testing.assert_array_equal(display.density_grid(matrix()), expected)


@pytest.mark.parametrize("shape", [(3, 3), (10**6, 10**6), (0, 0), (5, 0), (1, 10**5)])
def test_spy_draws_matrices_of_any_size(shape):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    where = [[n - 1, 0] if min(shape) else [] for n in shape]
    figure, ax = plt.subplots()
    assert sg.coo(where, None, shape).to("csr").spy(ax) is ax
    figure.canvas.draw()
    assert f"{shape[0]:,} × {shape[1]:,}" in ax.get_title()
    plt.close(figure)
    with pytest.raises(sg.ShapeError, match="spy: needs two sparse dimensions"):
        sg.coo([[0]], [1.0], (3,)).spy()
    plt.close("all")
