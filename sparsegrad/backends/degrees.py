"""Normalisation of graphs: sums of the lines of a matrix, and its entries scaled by them.

Part of the contract; pure array code here. A `pattern` is what `Backend` says it is.
"""

from __future__ import annotations

from typing import Any

from sparsegrad.backends.basics import Array, Basics
from sparsegrad.dtypes import accumulator

__all__ = ["Degrees"]


class Degrees(Basics):
    """Entries divided by the sum of their row; or by the roots of the sums of the rows that have
    the numbers of their row and of their column, if `both`.

    loops: a plan that takes entries to those of `pattern` and adds the identity (its `slots`,
    `distinct`, `diagonal`), or None.
    """

    def line_sums(self, pattern: Any, x: Array) -> Array:
        """Sums of the entries of each row: x (nnz, *D) -> (m, *D)."""
        if self.scatter_sorts or pattern.format == "csr":
            indptr, _, perm = pattern.rows()
            return self.segment_sum(x, indptr) if perm is None else self.sum_runs(x, perm, indptr)
        return self.put_rows(x, pattern.row, pattern.shape[0])

    def by_degree(self, x: Array, pattern: Any, loops: Any, both: bool) -> tuple[Array, Array]:
        """x (entries, *D) -> the scaled entries of `pattern` (nnz, *D), and the scale of each row
        (m, *D): 1 / sum, 0 where that is 0, or 1 / sqrt(sum), 0 where that is not positive."""
        x = x.astype(accumulator(x.dtype), copy=False)
        if loops is not None:
            x = self.put_rows(x, loops.slots, pattern.nnz, loops.distinct)
            x[loops.diagonal] += 1
        scale = self.fused(_inverse, self.line_sums(pattern, x), root=both)
        y = x * self.gather(scale, pattern.row)
        if both:
            y *= self.gather(scale, pattern.col)
        return y, scale

    def by_degree_grad(
        self, g: Array, g_scale: Array, y: Array, scale: Array, pattern: Any, loops: Any, both: bool
    ) -> Array:
        """The gradient of `by_degree` to x (entries, *D) from its results and theirs."""
        wide = accumulator(g.dtype)
        g, g_scale, y, scale = (a.astype(wide, copy=False) for a in (g, g_scale, y, scale))
        # The sum of a row moves all that it scales: by its slope times what these contribute.
        moved = g * y
        total = self.line_sums(pattern, moved)
        if both:
            total += self.line_sums(pattern.T, moved)
        through = self.fused(_through_scale, total, scale, g_scale, both=both)
        out = g * self.gather(scale, pattern.row)
        if both:
            out *= self.gather(scale, pattern.col)
        out += self.gather(through, pattern.row)
        return out if loops is None else self.gather(out, loops.slots)


def _inverse(xp: Any, total: Array, *, root: bool) -> Array:
    """1 / total or its root, as `Degrees.by_degree` has it."""
    if root:
        return xp.where(total > 0, 1 / xp.sqrt(xp.where(total > 0, total, 1)), 0)
    return xp.where(total == 0, 0, 1 / xp.where(total == 0, 1, total))


def _through_scale(xp: Any, total: Array, scale: Array, g_scale: Array, *, both: bool) -> Array:
    return (total + scale * g_scale) * (-0.5 * (scale * scale) if both else -scale)
