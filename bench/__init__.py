"""Benchmarks: every number side by side with peers, in one run, checked before it is timed.

`python -m bench cpu` runs the table, `pytest bench/` the micro-benchmarks; README.md says how to
read both. Nothing in sparsegrad imports this package.
"""
