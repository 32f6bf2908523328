"""Numba kernels: waiting without sleep, for as long as waking up would take.

All look at a board of int64: tasks drawn so far (the ticket of a job), tasks there are, and, on a
line of memory of its own, helpers that are done.
"""

from __future__ import annotations

import platform

from llvmlite import ir
from numba import int64, types
from numba.extending import intrinsic

from sparsegrad.backends.cpu_jit_launch import _DONE, _TASKS
from sparsegrad.backends.cpu_jit_vector import draw, kernel

_PAUSE = {"x86_64": "llvm.x86.sse2.pause", "amd64": "llvm.x86.sse2.pause"}.get(
    platform.machine().lower()
)


@intrinsic
def _look(typingctx, board, place):
    """What stands on the board now, after a breath that leaves the core to its other thread."""

    def codegen(context, builder, signature, args):
        if _PAUSE is not None:
            void = ir.FunctionType(ir.VoidType(), [])
            builder.call(builder.module.declare_intrinsic(_PAUSE, fnty=void), [])
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.load_atomic(builder.gep(data, [args[1]]), "acquire", 8)

    return types.int64(board, types.int64), codegen


@intrinsic
def _count(typingctx, board, place):
    """One more at a place on the board."""

    def codegen(context, builder, signature, args):
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        one = context.get_constant(types.int64, 1)
        return builder.atomic_rmw("add", builder.gep(data, [args[1]]), one, "release")

    return types.int64(board, types.int64), codegen


@kernel(">n1 n", "")
def linger(board, turns):
    """Count a helper that is done, then look out for a job that has begun: True if there is one
    before so many turns are over."""
    _count(board, int64(_DONE))
    for _ in range(turns):
        drawn = _look(board, int64(0))
        if 0 < drawn < _look(board, int64(_TASKS)):
            return True
    return False


@kernel(">n1 n n", "")
def settle(board, helpers, turns):
    """Wait until so many helpers are done, or so many turns are over."""
    for _ in range(turns):
        if _look(board, int64(_DONE)) >= helpers:
            return


@kernel(">n1", "")
def next_task(ticket):
    """Draw a task, for what is no kernel itself."""
    return draw(ticket)
