"""The launch helper refuses what a kernel would silently misread."""

import numpy as np
import pytest

from sparsegrad.backends import cuda_kernels as kernels
from sparsegrad.errors import DtypeError, ShapeError


def launch_check(cp, **changed):
    arguments = {"indices": cp.zeros((2, 5), "i"), "stride": 5, "ndim": 2, "n": 5}
    arguments |= {"flags": cp.zeros(1, "i"), **changed}
    arguments = {name: value for name, value in arguments.items() if value is not ...}
    kernels.launch(kernels.kernel("coalesce", "sg_coalesce_check", "int"), 5, **arguments)


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        (lambda cp: {"indices": cp.zeros((2, 5), "l")}, DtypeError, "indices must be int32"),
        (lambda cp: {"indices": cp.zeros((5, 2), "i").T}, ShapeError, "must be contiguous"),
        (lambda cp: {"indices": np.zeros((2, 5), "i")}, TypeError, "be a cupy array, not ndarray"),
        (lambda cp: {"indices": None}, TypeError, "be a cupy array, not NoneType"),
        (lambda cp: {"n": 5.0}, TypeError, "n must be an integer, not float"),
        (lambda cp: {"ndim": 1 << 40}, OverflowError, "too large|out of bounds"),
        (lambda cp: {"n": ...}, TypeError, r"missing or unknown arguments \['n'\]"),
        (lambda cp: {"m": 5}, TypeError, r"missing or unknown arguments \['m'\]"),
        (lambda cp: {"m": 5, "n": ...}, TypeError, "missing argument 'n'"),
    ],
)
def test_launch_refuses(cp, changed, error, message):
    launch_check(cp)
    with pytest.raises(error, match=message):
        launch_check(cp, **changed(cp))


def test_launch_casts_scalars(cp):
    launch_check(cp, n=np.int32(5), ndim=np.int64(2))
