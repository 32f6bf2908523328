"""Rows of what moves tensors between devices; tests/test_device.py has real ones."""

from __future__ import annotations

import sparsegrad as sg
from op_db.case import FORMATS, OpCase
from op_db.samples import eye, one_sparse_or_hybrid, unary
from sparsegrad.device import CPU
from sparsegrad.ops.transfer import to_device_p

ROWS = [
    OpCase(
        "to_device",
        lambda x: to_device_p(x, device=CPU, home=CPU),
        lambda x: x,
        unary,
        primitive="to_device_p",
        bilinear=True,
        errors=(
            (lambda: sg.to_device(sg.ones(2), "tpu"), sg.DeviceError, r"device: .*got 'tpu'"),
            (lambda: sg.to_device(eye(), "cpu:1"), sg.DeviceError, r"device: .*got 'cpu:1'"),
        ),
    ),
    OpCase(
        "to_device[sparse]",
        lambda a: to_device_p(a, device=CPU, home=CPU),
        lambda a: a,
        one_sparse_or_hybrid,
        formats=FORMATS,
        bilinear=True,
        huge=lambda d: ((d.huge(),), {}),
    ),
]
