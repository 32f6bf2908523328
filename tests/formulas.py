"""Formulas of optimizers, one element at a time, and the cases that are compared with them."""

import numpy as np
import pytest

import sparsegrad as sg
from sparsegrad import optim

SGD = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}
ADAM = {"lr": 0.1, "betas": (0.8, 0.99), "eps": 1e-6, "weight_decay": 0.01}


def sgd(p, grads, lr=0.1, momentum=0.0, weight_decay=0.0, nesterov=False, dampening=0.0):
    v = 0.0
    for t, g in enumerate(grads):
        g = g + weight_decay * p
        v = momentum * v + (1 - dampening if t else 1) * g
        p = p - lr * (g + momentum * v if nesterov else v)
    return p


def adam(p, grads, lr=0.1, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, amsgrad=False):
    m = v = top = 0.0
    for t, g in enumerate(grads, 1):
        g = g + weight_decay * p
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g * g
        top = np.maximum(top, v) if amsgrad else v
        p = p - lr / (1 - betas[0] ** t) * m / (np.sqrt(top) / np.sqrt(1 - betas[1] ** t) + eps)
    return p


def adamw(p, grads, weight_decay=0.01, lr=0.1, **options):
    steps, before = [], p
    for t in range(len(grads)):  # Adam on the same gradients, its moves added to the decayed p
        moved = adam(before, grads[: t + 1], lr=lr, **options)
        steps.append(moved - adam(before, grads[:t], lr=lr, **options))
    for step in steps:
        p = p * (1 - lr * weight_decay) + step
    return p


def adagrad(p, grads, lr=0.1, lr_decay=0.0, weight_decay=0.0, start=0.0, eps=1e-10):
    s = start
    for t, g in enumerate(grads):
        g = g + weight_decay * p
        s = s + g * g
        p = p - lr / (1 + t * lr_decay) * g / (np.sqrt(s) + eps)
    return p


def rmsprop(p, grads, lr=0.1, alpha=0.99, weight_decay=0.0, momentum=0.0, centered=False):
    v = a = b = 0.0
    for g in grads:
        g = g + weight_decay * p
        v = alpha * v + (1 - alpha) * g * g
        a = alpha * a + (1 - alpha) * g
        b = momentum * b + g / (np.sqrt(v - a * a if centered else v) + 1e-8)
        p = p - lr * b
    return p


def upwards(formula):
    return lambda p, grads, maximize, **options: formula(p, [-g for g in grads], **options)


RMS = {"lr": 0.01, "alpha": 0.9, "momentum": 0.5, "weight_decay": 0.01, "centered": True}
CASES = [
    pytest.param(optim.SGD, sgd, {"lr": 0.1}, id="sgd"),
    pytest.param(optim.SGD, sgd, {"lr": 0.1, "weight_decay": 0.1}, id="sgd-decay"),
    pytest.param(optim.SGD, sgd, SGD, id="sgd-momentum"),
    pytest.param(optim.Adam, adam, {"lr": 0.1}, id="adam"),
    pytest.param(optim.Adam, adam, ADAM, id="adam-decay"),
    pytest.param(optim.SGD, sgd, SGD | {"nesterov": True}, id="sgd-nesterov"),
    pytest.param(optim.SGD, sgd, SGD | {"dampening": 0.4}, id="sgd-dampening"),
    pytest.param(optim.SGD, upwards(sgd), SGD | {"maximize": True}, id="sgd-maximize"),
    pytest.param(optim.AdamW, adamw, ADAM | {"weight_decay": 0.1}, id="adamw"),
    pytest.param(optim.Adam, adam, ADAM | {"betas": (0.8, 0.1), "amsgrad": True}, id="amsgrad"),
    pytest.param(optim.AdamW, upwards(adamw), ADAM | {"maximize": True}, id="adamw-maximize"),
    pytest.param(optim.Adagrad, adagrad, {"lr": 0.1}, id="adagrad"),
    pytest.param(
        optim.Adagrad,
        adagrad,
        {"lr": 0.1, "lr_decay": 0.5, "weight_decay": 0.1},
        id="adagrad-decay",
    ),
    pytest.param(optim.RMSprop, rmsprop, {"lr": 0.01}, id="rmsprop"),
    pytest.param(optim.RMSprop, rmsprop, RMS, id="rmsprop-centered"),
]
every = pytest.mark.parametrize(("cls", "formula", "options"), CASES)


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def row_sparse(rows, values, shape):
    return sg.SparseTensor([rows], values, shape)
