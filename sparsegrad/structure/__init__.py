"""Where stored entries are: patterns and plans. Knows no values and no autograd."""

from sparsegrad.structure.pattern import Pattern

__all__ = ["Pattern"]
