"""Public files: from a local folder, else downloaded once into the user's cache."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from sparsegrad.data.files import FOLDER_VARIABLE, local
from sparsegrad.data.graph import DataError

__all__ = ["CACHE_VARIABLE", "Remote", "fetch"]

CACHE_VARIABLE = "SPARSEGRAD_CACHE"


@dataclass(frozen=True)
class Remote:
    """A file that anyone can download."""

    url: str
    sha256: str

    @property
    def name(self) -> str:
        """Its last part, by which it lies in a folder."""
        return self.url.rpartition("/")[2]


def fetch(loader: str, remote: Remote, folder: str | os.PathLike[str] | None = None) -> Path:
    """The file, from `folder` (by default the one that SPARSEGRAD_DATA names) if it is there, else
    from the cache, into which it is downloaded by pooch (extra `data`) if it is not there.

    The cache is a folder of the user, or the one that SPARSEGRAD_CACHE names. A download takes its
    place in it when it is complete and its SHA-256 is right. Raises DataError if it cannot be had.
    """
    found = local(remote.name, folder)
    if found is not None:
        return found
    advice = f"or put {remote.name} into the folder that {FOLDER_VARIABLE} names"
    try:
        import pooch
    except ImportError:
        raise DataError(
            f"{loader}: downloading {remote.url} needs pooch, pip install "
            f"'sparsegrad-engine[data]'; {advice}"
        ) from None
    try:
        return Path(
            pooch.retrieve(
                remote.url,
                known_hash=f"sha256:{remote.sha256}",
                fname=remote.name,
                path=os.environ.get(CACHE_VARIABLE) or pooch.os_cache("sparsegrad"),
            )
        )
    except (OSError, ValueError) as error:
        raise DataError(
            f"{loader}: {remote.url} cannot be downloaded: {error}; try again, {advice}"
        ) from None
