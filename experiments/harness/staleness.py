"""When a kept run is stale: when the study would compute something else today.

A run's JSON has its settings, the version of the study (`Study.version`) and checksums of the data
it read. Code that is moved, renamed or made faster changes none of these. A hash of the source, or
of the programs that JAX traces, would change with most commits that change no result; so whoever
changes what a study computes raises its version, and a test lists the runs that are older.
"""

import functools
import hashlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.harness.command import find_options
from jaxeff import data

if TYPE_CHECKING:
    from experiments.harness.study import Study

VERSION, DATA = "study_version", "data_checksums"
"""Entries of a run's JSON."""
EMBEDDED = ("digits", "digits-ood")
"""Data that come with the library. Their images are resized by a product of matrices, whose last
bit, and with it a grey level here and there, is the processor's."""


def fingerprint(study: "Study[Any]", config: Mapping[str, Any]) -> dict[str, Any]:
    """What a run's rows are made of, beside its settings: entries of its JSON."""
    names = _named(config) if study.data is None else study.data
    there = data.available()
    return {
        VERSION: study.version,
        DATA: {name: checksum(name) for name in sorted(set(names)) if name in there},
    }


def stale(study: "Study[Any]", content: Mapping[str, Any]) -> list[str]:
    """Tells why a run's rows aren't what the study would compute today; nothing if they are.

    Args:
        study: As it is today.
        content: The run's JSON.
    """
    reasons = []
    if VERSION not in content:
        reasons.append("made before studies had versions")
    elif content[VERSION] != study.version:
        reasons.append(f"of version {content[VERSION]} of the study, which is at {study.version}")
    there = data.available()
    for name, known in content.get(DATA, {}).items():
        if name in there and name not in EMBEDDED and checksum(name) != known:
            reasons.append(f"other data: {name}")
    settings = study.sizes[content["size"]]
    known_names = {option.path[0] for option in find_options(type(settings))}
    known_names |= {*vars(settings), "size", "seed"}
    if unknown := sorted(set(content["config"]) - known_names):
        reasons.append(f"settings that are no longer there: {', '.join(unknown)}")
    return reasons


@functools.cache
def checksum(name: str) -> str:
    """The first digits of the SHA-256 of a data set's images and labels."""
    loaded = data.load(name)
    digest = hashlib.sha256()
    for part in ("train_images", "train_labels", "test_images", "test_labels"):
        array = np.ascontiguousarray(getattr(loaded, part))
        digest.update(f"{array.shape}{array.dtype}".encode())
        digest.update(array.data)
    return digest.hexdigest()[:16]


def _named(value: Any) -> Iterator[str]:
    """The data sets that settings name."""
    if isinstance(value, Mapping):
        value = [*value.values()]
    if isinstance(value, list):
        for one in value:
            yield from _named(one)
    elif isinstance(value, str) and value in data.NAMES:
        yield value
