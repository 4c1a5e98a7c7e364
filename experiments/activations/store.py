"""Finished trials, a file each: a run that was killed goes on with the next one."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import jax

from experiments.activations.recipe import Settings, Trial
from jaxeff.training import load_metadata, load_pytree, save_pytree


class Outcome(NamedTuple):
    """What a trial found.

    Attributes:
        row: A flat record for the table.
        curves: Arrays for the figure, by name.
    """

    row: dict[str, Any]
    curves: dict[str, jax.Array]


class Store:
    """A folder of finished trials."""

    def __init__(self, folder: Path, settings: Settings):
        self.folder, self._settings = folder, settings

    def load(self, trial: Trial) -> Outcome | None:
        """A trial's outcome, or None if it isn't there or was made with other settings."""
        path = self._path(trial)
        if not path.exists():
            return None
        metadata = load_metadata(path)
        if metadata["settings"] != _plain(self._settings.of(trial)):
            return None
        return Outcome(metadata["row"], load_pytree(path))

    def save(self, trial: Trial, outcome: Outcome) -> None:
        """Keep a trial's outcome, whole or not at all."""
        metadata = {"settings": _plain(self._settings.of(trial)), "row": outcome.row}
        save_pytree(self._path(trial), outcome.curves, metadata)

    def chains(self, trial: Trial) -> Path:
        """Where a trial's chains are kept, so that they can go on for more draws."""
        settings = json.dumps(self._settings.of_chains(trial), sort_keys=True)
        return self.folder / f"{trial}-chains-{hashlib.sha256(settings.encode()).hexdigest()[:8]}"

    def forget(self) -> None:
        """Remove every trial, finished or not."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _path(self, trial: Trial) -> Path:
        return self.folder / f"{trial}.safetensors"


def _plain(settings: dict[str, Any]) -> Any:
    """As they come back from JSON."""
    return json.loads(json.dumps(settings))
