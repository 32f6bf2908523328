"""Processes that make batches, and what makes them the same wherever they are made.

A worker is told two numbers, epoch and batch, and answers with pickled bytes through a pipe of its
own. The numbers are small and few (`prefetch_factor`), so that sending them never waits; a worker
that dies closes its pipe, which ends every wait for it.
"""

from __future__ import annotations

import pickle
import random as python_random
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsegrad import random
from sparsegrad.backends.cpu_jit_launch import set_num_threads
from sparsegrad.errors import SparsegradError

__all__ = ["Batches", "WorkerError", "Workers", "in_order"]


class WorkerError(SparsegradError, RuntimeError):
    """A worker process raised an error, or died."""


@dataclass
class Batches:
    """The batches of every epoch, as a function of epoch and number alone."""

    dataset: Any
    size: int
    shuffle: bool
    drop_last: bool
    collate: Callable[[list[Any]], Any]
    seed: int

    def count(self) -> int:
        """Batches in an epoch."""
        n = len(self.dataset)
        return n // self.size if self.drop_last else -(-n // self.size)

    def order(self, epoch: int) -> np.ndarray:
        """Positions of samples in the order of an epoch."""
        n = len(self.dataset)
        return _rng(self.seed, epoch).permutation(n) if self.shuffle else np.arange(n)

    def make(self, order: np.ndarray, epoch: int, number: int) -> Any:
        """One batch."""
        ids = order[number * self.size : (number + 1) * self.size]
        with _seeded(self.seed, epoch, number):
            if hasattr(self.dataset, "batch"):
                return self.dataset.batch(ids)
            if hasattr(self.dataset, "__getitems__"):
                return self.collate(self.dataset.__getitems__(ids.tolist()))
            return self.collate([self.dataset[i] for i in ids.tolist()])

    def epoch(self, epoch: int) -> Iterator[Any]:
        """All of an epoch, made in this process."""
        order = self.order(epoch)
        return (self.make(order, epoch, number) for number in range(self.count()))


def _rng(*entropy: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(entropy)))


@contextmanager
def _seeded(*entropy: int) -> Iterator[None]:
    """All three generators start anew inside, and go on afterwards as if nothing had been drawn."""
    seed = int(_rng(*entropy).integers(2**63))
    # Data sets of others draw from NumPy's old generator.
    numpy_state, python_state = np.random.get_state(), python_random.getstate()  # noqa: NPY002
    with random.replayed(random.state()):
        random.generator().manual_seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        python_random.seed(seed)
        try:
            yield
        finally:
            np.random.set_state(numpy_state)  # noqa: NPY002
            python_random.setstate(python_state)


# ---- processes ---------------------------------------------------------------------------------
class Workers:
    """Processes that know `batches`; number w makes the batches w, w + count, ... of an epoch."""

    def __init__(self, batches: Batches, count: int) -> None:
        import multiprocessing  # most programs need none of it

        context = multiprocessing.get_context("spawn")
        self.pipes: list[Any] = []
        self.processes: list[Any] = []
        try:
            task = pickle.dumps(batches)
            for _ in range(count):
                here, there = context.Pipe()
                process = context.Process(target=_work, args=(there, task), daemon=True)
                process.start()
                there.close()
                self.pipes.append(here)
                self.processes.append(process)
        except BaseException:
            self.close()
            raise

    def ask(self, epoch: int, number: int) -> None:
        """Let a batch be made."""
        try:
            self._pipe(number).send((epoch, number))
        except OSError:
            raise self._died(number) from None

    def answer(self, number: int) -> Any:
        """A batch that was asked for; those of one worker in order."""
        try:
            fine, content = pickle.loads(self._pipe(number).recv_bytes())
        except (EOFError, OSError):
            raise self._died(number) from None
        if not fine:
            raise WorkerError(
                f"DataLoader: making batch {number} failed in worker "
                f"{number % len(self.pipes)}:\n{content}"
            )
        return content

    def _pipe(self, number: int) -> Any:
        return self.pipes[number % len(self.pipes)]

    def _died(self, number: int) -> WorkerError:
        process = self.processes[number % len(self.pipes)]
        process.join(1)
        return WorkerError(
            f"DataLoader: worker {number % len(self.pipes)} died (exit code {process.exitcode}) "
            f"before batch {number} was there; was it out of memory, or does the script lack "
            'the guard `if __name__ == "__main__":`?'
        )

    def close(self) -> None:
        """End all processes: those that wait end by themselves, others are stopped."""
        for pipe in self.pipes:
            pipe.close()
        for process in self.processes:
            process.join(0.2)
            if process.is_alive():
                process.terminate()
                process.join()
            process.close()
        self.pipes, self.processes = [], []


def in_order(workers: Workers, epoch: int, count: int, prefetch: int) -> Iterator[Any]:
    """The batches of an epoch; each worker is up to `prefetch` ahead. What was asked for and is not
    wanted any more is thrown away, so that the next epoch finds empty pipes."""
    ahead = prefetch * len(workers.pipes)
    asked = got = 0
    try:
        while got < count:
            while asked < min(count, got + ahead):
                workers.ask(epoch, asked)
                asked += 1
            number, got = got, got + 1
            yield workers.answer(number)
    except GeneratorExit:
        for number in range(got, asked):
            with suppress(WorkerError):
                workers.answer(number)
        raise


def _work(pipe: Any, task: bytes) -> None:
    """What a worker does, until its pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which closes the pipe
    set_num_threads(1)  # the workers are the threads
    batches, order, of_epoch = None, None, -1
    while True:
        try:
            epoch, number = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            if batches is None:
                batches = pickle.loads(task)
            if epoch != of_epoch:
                order, of_epoch = batches.order(epoch), epoch
            answer = pickle.dumps((True, batches.make(order, epoch, number)), -1)
        except Exception:
            answer = pickle.dumps((False, traceback.format_exc()))
        try:
            pipe.send_bytes(answer)
        except OSError:  # nobody listens any more
            return
