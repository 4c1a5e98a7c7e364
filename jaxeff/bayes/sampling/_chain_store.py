"""A run on disk: a folder with the chains' state and the draws so far.

``state.safetensors`` is replaced in one step after each block of iterations; what a block drew is
in a file of its own, written before. So a run that is killed loses at most the block it was in. Of
processes that make one run together, the first alone reads and writes.
"""

from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxeff.bayes.sampling._program import Chains
from jaxeff.core import from_writer, is_writer
from jaxeff.store import CheckpointError, load_metadata, load_pytree, require_same_run, save_pytree

_KIND = "jaxeff.mcmc"


class Trace(NamedTuple):
    """Records of chains, in NumPy arrays.

    Attributes:
        positions: Kept draws, ``[draws, chains, d]``.
        stats: Mapping from name to ``[iterations, chains]``, warm-up included.
        seconds: Wall time of each iteration.
    """

    positions: np.ndarray
    stats: dict[str, np.ndarray]
    seconds: np.ndarray


class ChainStore:
    """The folder of one run."""

    def __init__(self, folder: Path, identity: dict[str, Any], together: bool = False):
        self._folder, self._identity, self._together = folder, identity, together
        self._state = folder / "state.safetensors"
        self._files: list[str] = []

    def clear(self) -> None:
        """Forgets the run so far; its draws are overwritten one by one."""
        if is_writer(self._together):
            self._state.unlink(missing_ok=True)

    def load(self, like: Chains, force: bool = False) -> tuple[Chains, int, list[Trace]] | None:
        """Reads the run so far.

        Args:
            like: A state of the same structure.
            force: Whether to read another run as well.

        Returns:
            The state, the number of iterations done and what they left; None if there is no run.

        Raises:
            CheckpointError: A file is damaged or missing, or the run is another one.
        """
        return from_writer(lambda: self._read(like, force), self._together)

    def _read(self, like: Chains, force: bool) -> tuple[Chains, int, list[Trace]] | None:
        path = self._state
        if not path.exists():
            return None
        metadata = load_metadata(path)
        if metadata.get("kind") != _KIND:
            raise CheckpointError(f"{path} is a checkpoint, but not one of sampled chains.")
        if not force:
            require_same_run(
                f"the chains in {self._folder} are", metadata["identity"], self._identity,
                place="folder",
            )  # fmt: skip
        state = load_pytree(path, like)
        # Files that the state names: any other is of a block that was cut off.
        self._files = list(metadata["files"])
        try:
            traces = [_numpy(load_pytree(self._folder / name)) for name in self._files]
        except FileNotFoundError as error:
            raise CheckpointError(f"the chains in {self._folder} are incomplete: {error}") from None
        return state, metadata["iterations"], traces

    def append(self, state: Chains, iterations: int, trace: Trace) -> None:
        """Keeps a block of iterations.

        Args:
            state: After the block.
            iterations: Done so far, this block included.
            trace: Records of the block.
        """
        if not is_writer(self._together):
            return
        name = f"draws-{len(self._files):06d}.safetensors"
        # Draws before the state that names them: a kill between the two loses this block alone.
        save_pytree(self._folder / name, trace._asdict())
        self._files.append(name)
        metadata = {
            "kind": _KIND,
            "identity": self._identity,
            "iterations": iterations,
            "files": self._files,
        }
        save_pytree(self._state, state, metadata)


def _numpy(tree: dict[str, Any]) -> Trace:
    return Trace(**jax.tree.map(np.asarray, tree))
