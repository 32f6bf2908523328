"""Helpers for training loops, where PyTorch has them.

>>> import sparsegrad as sg
>>> model = sg.nn.Linear(3, 1)
>>> model(sg.ones(2, 3)).sum().backward()
>>> bool(sg.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0) > 1)
True
"""

from sparsegrad.autograd.clip import clip_grad_norm_, clip_grad_value_

__all__ = ["clip_grad_norm_", "clip_grad_value_"]
