"""Mini-batches, made in this process or by worker processes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sparsegrad import sampling
from sparsegrad.data import samples
from sparsegrad.data.workers import Batches, Workers, in_order

__all__ = ["DataLoader"]


class DataLoader:
    """Batches of a data set, again and again: each `for` over it is an epoch.

    dataset: has `len()` and `dataset[i]`, or `__getitems__(ids)`, which gives a list of samples; or
        `batch(ids)`, which gives a whole batch, and is then asked instead.
    batch_size: samples in a batch; the last one of an epoch may have fewer, unless `drop_last`.
    shuffle: another order in each epoch.
    num_workers: processes that make the batches; 0: this one does. They are started anew (not
        forked), so data set and `collate_fn` must be picklable, and a script must guard what it
        does with `if __name__ == "__main__":`. They live until `close()` or the end of the loader.
    collate_fn: makes a batch of a list of samples; see `default_collate`.
    seed: of the order, and of what a data set draws; by default from the generator of
        `sg.manual_seed`.
    prefetch_factor: batches that each worker may be ahead.

    Batches are the same for any number of workers, and come in order: whatever a data set draws,
    by sparsegrad, NumPy's `np.random` or `random`, depends on seed, epoch and batch alone. In this
    process the three generators go on afterwards as if nothing had been drawn.
    `state_dict` holds the number of epochs, for `keep` of `sparsegrad.recipes.fit`.

    An error in a worker is raised here, with its traceback, as is its death: `WorkerError`. Raises
    ValueError for numbers out of range, and RuntimeError for two iterations at the same time with
    workers.

    >>> import sparsegrad as sg
    >>> loader = sg.data.DataLoader([1.0, 2.0, 3.0], batch_size=2)
    >>> list(loader), len(loader)
    ([tensor([1., 2.]), tensor([3.])], 2)
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        shuffle: bool = False,
        *,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        drop_last: bool = False,
        seed: int | None = None,
        prefetch_factor: int = 2,
    ) -> None:
        for name, value, least in (
            *(("batch_size", batch_size, 1), ("num_workers", num_workers, 0)),
            ("prefetch_factor", prefetch_factor, 1),
        ):
            if value < least:
                raise ValueError(f"DataLoader: {name} must be at least {least}, got {value}")
        if seed is None:
            seed = sampling.randint(2**62, (1,)).item()
        self.dataset, self.num_workers, self._ahead = dataset, num_workers, prefetch_factor
        join = samples.default_collate if collate_fn is None else collate_fn
        self._batches = Batches(dataset, batch_size, shuffle, drop_last, join, seed)
        self._epoch = 0
        self._workers: Workers | None = None
        self._busy = False

    def __len__(self) -> int:
        """Batches in an epoch."""
        return self._batches.count()

    def __iter__(self) -> Iterator[Any]:
        epoch = self._epoch
        self._epoch += 1
        if not self.num_workers:
            return self._batches.epoch(epoch)
        return self._from_workers(epoch)

    def _from_workers(self, epoch: int) -> Iterator[Any]:
        if self._busy:
            raise RuntimeError(
                "DataLoader: another iteration is under way; its workers serve one at a time"
            )
        self._busy = True
        try:
            if self._workers is None:
                self._workers = Workers(self._batches, self.num_workers)
                self._finalizer = weakref.finalize(self, self._workers.close)
            yield from in_order(self._workers, epoch, len(self), self._ahead)
        except BaseException as error:
            if not isinstance(error, GeneratorExit):
                self.close()
            raise
        finally:
            self._busy = False

    def close(self) -> None:
        """End the workers; the next epoch starts new ones."""
        if self._workers is not None:
            self._finalizer()
            self._workers = None

    def state_dict(self) -> dict[str, int]:
        """How many epochs were begun."""
        return {"epoch": self._epoch}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on with the epoch after those of a `state_dict`."""
        self._epoch = int(state["epoch"])
