"""Mixed precision: products in 16 bits, parameters and their gradients in 32.

>>> import sparsegrad as sg
>>> with sg.amp.autocast(dtype=sg.float16):
...     (sg.ones(2, 3) @ sg.ones(3, 4)).dtype
dtype('float16')
"""

from sparsegrad.autograd.autocast import autocast, is_autocast_enabled
from sparsegrad.autograd.grad_scaler import GradScaler

__all__ = ["GradScaler", "autocast", "is_autocast_enabled"]
