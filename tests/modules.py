"""What tests of modules share: matrices, and a module as a function of its parameters."""

import numpy as np
import scipy.sparse as sp

import sparsegrad as sg


def rng(seed=0):
    return np.random.default_rng(seed)


def sparse(m, n, fmt="coo", density=0.3, seed=0, **options):
    A = sp.random_array((m, n), density=density, format=fmt, rng=rng(seed))
    return sg.from_scipy(A, **options)


def dense(*shape, seed=1):
    return sg.tensor(rng(seed).standard_normal(shape), requires_grad=True)


def as_function(module, *leading):
    """The module as a function of its inputs and then its parameters, for gradcheck."""
    names = [name for name, p in module._parameters.items() if p is not None]

    def call(*args):
        inputs, parameters = args[: len(args) - len(names)], args[len(args) - len(names) :]
        held = dict(module._parameters)
        module._parameters.update(zip(names, parameters, strict=True))
        try:
            return module(*inputs)
        finally:
            module._parameters.update(held)

    return call, (*leading, *(module._parameters[name] for name in names))
