"""The chunks of a sweep: how replicates are grouped, kept on disk and joined."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxeff.core import from_writer, is_writer
from jaxeff.store import Resume, load_metadata, load_pytree, require_same_run, save_pytree


def even_parts(total: int, most: int) -> list[list[int]]:
    """Splits a range into parts of at most ``most``, the last filled up to the others' length."""
    # Of one size, so that one compiled program trains them all.
    count = math.ceil(total / most)
    size = math.ceil(total / count)
    return [[min(k, total - 1) for k in range(i * size, (i + 1) * size)] for i in range(count)]


class ChunkFolder:
    """Folder of finished chunks, and of the checkpoint of the running one.

    Of processes that make one run `together`, the first alone reads and writes them.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        identity: dict[str, Any],
        together: bool = False,
        resume: Resume = True,
    ) -> None:
        self.path = None if path is None else Path(path)
        self.identity = identity
        self._resume = resume
        self._together = together

    def running(self, name: str, filled: tuple[int, int] | None = None) -> Path | None:
        """Names the checkpoint of a chunk while it trains.

        Args:
            name: The chunk's.
            filled: The rows and columns if it was filled up for the devices; on another number of
                devices it starts anew.
        """
        size = "" if filled is None else "-{}x{}".format(*filled)
        return None if self.path is None else self.path / f"running-{name}{size}.safetensors"

    def load(self, name: str, like: Any) -> Any:
        """Reads the results of a finished chunk, or None; ``like`` has their structure.

        Raises:
            CheckpointError: The file is damaged, or of another sweep.
        """
        if self.path is None or not self._resume:
            return None
        return from_writer(lambda: self._read(name, like), self._together)

    def _read(self, name: str, like: Any) -> Any:
        if self.path is None or not (file := self.path / f"{name}.safetensors").exists():
            return None
        if self._resume != "force":
            require_same_run(
                f"{file} is", load_metadata(file), self.identity, run="sweep", place="folder"
            )
        return jax.device_get(load_pytree(file, like))

    def save(self, name: str, found: Any) -> None:
        """Writes the results of a finished chunk, and removes its checkpoints."""
        if self.path is not None and is_writer(self._together):
            save_pytree(self.path / f"{name}.safetensors", found, self.identity)
            # Once the result is written: a kill before that goes on from these checkpoints.
            for pattern in (f"running-{name}.*", f"running-{name}-*x*.*"):
                for file in self.path.glob(pattern):
                    file.unlink()


def join_chunks(found: Any, rows: Any, columns: Any, seeds: int, total: int) -> Any:
    """Joins chunks, without what filled up the last ones."""

    def concatenate(*leaves: Any) -> Any:
        # Chunks are in order of seeds, then settings.
        grid = [leaves[i * len(columns) : (i + 1) * len(columns)] for i in range(len(rows))]
        joined = np.concatenate([np.concatenate(row, axis=1) for row in grid], axis=0)
        return joined[:seeds, :total]

    return jax.tree.map(concatenate, *found.values())
