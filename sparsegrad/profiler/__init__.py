"""Where time and memory go: `with sg.profile() as prof: ...`, then `print(prof.table())`."""

from sparsegrad.profiler.recording import profile
from sparsegrad.profiler.totals import OpStats

__all__ = ["OpStats", "profile"]
