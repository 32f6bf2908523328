"""Optimizers for dense parameters, row-sparse gradients, and parameters that are sparse.

Whatever the layout of a parameter or its gradient, the formula is the same; what differs is which
elements a step touches:

    dense gradient                every element
    sparse gradient               the rows (or elements) it stores, duplicates summed first
    SparseTensor parameter        its stored values

A sparse gradient is *lazy*: weight decay and momentum of the rows it does not store stand still,
and so do the rows. One without entries changes nothing at all. Where the type of a gradient may
change (tied weights), name the meaning: `sparse="lazy"` or `sparse="dense"`; see `Optimizer`.

>>> import sparsegrad as sg
>>> w = sg.ones(4, 2, requires_grad=True)
>>> optimizer = sg.optim.SGD([w], lr=0.5)
>>> w.take(sg.tensor([1, 1])).sum().backward()
>>> optimizer.step()
>>> w.detach()
tensor([[1., 1.],
        [0., 0.],
        [1., 1.],
        [1., 1.]])
"""

from sparsegrad.autograd.clip import clip_grad_norm_, clip_grad_value_
from sparsegrad.optim import lr_scheduler
from sparsegrad.optim.adagrad import Adagrad, RMSprop, RowwiseAdagrad
from sparsegrad.optim.adam import Adam, AdamW
from sparsegrad.optim.ema import EMA
from sparsegrad.optim.optimizer import Optimizer
from sparsegrad.optim.sgd import SGD

__all__ = [
    "Adagrad",
    "Adam",
    "AdamW",
    "EMA",
    "Optimizer",
    "RMSprop",
    "RowwiseAdagrad",
    "SGD",
    "clip_grad_norm_",
    "clip_grad_value_",
    "lr_scheduler",
]
