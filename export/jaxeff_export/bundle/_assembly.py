"""Puts a bundle together: its files, written whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jaxeff.nn import Tokenizer
from jaxeff.store import atomic_folder, write_atomically
from jaxeff_export.artifact import Artifact, TensorSpec, digest
from jaxeff_export.bundle import files
from jaxeff_export.bundle.files import (
    Manifest,
    RecordedPair,
    own_files,
    pack_arrays,
    pack_tokenizer,
)

_PROGRAM = Path(__file__).parent / "running" / "_device_runner.py"


@dataclass(frozen=True, kw_only=True)
class BundleParts:
    """Contents of a bundle.

    Attributes:
      library: the compiled library's file; it is copied.
      artifact: what it was compiled from.
      arguments: the names of its last arguments, the data, which the bundle does not bind.
      parameters: the values of its first inputs, which the bundle binds; those that the library
        doesn't take are left out of it.
      derived: the arrays computed from them.
      operands: leading arguments of the library, as indices into parameters followed by derived
        arrays.
      recorded: pairs of values of the others and what JAX computed from them, for the self-check.
      target_name: the target as it was asked for.
      target: the TVM target dict.
      machine: the library's processor architecture.
      processor_features: number of features of the processor that the library may use, as in
        /proc/cpuinfo.
      versions: versions of the packages that made it.
      kernels: per kernel what it has to do, as the manifest has it.
      rounds_inputs: whether the function rounds its data to codes.
      verdict: what is known of the results beside their values.
      state: names of the arguments that the bundle keeps and updates.
      tokenizer: what makes tokens of texts, or None.
    """

    library: Path
    artifact: Artifact
    arguments: tuple[str, ...]
    parameters: Sequence[np.ndarray]
    derived: Sequence[np.ndarray]
    operands: tuple[int, ...]
    recorded: Sequence[RecordedPair]
    target_name: str
    target: Mapping[str, Any]
    machine: str
    processor_features: tuple[str, ...]
    versions: Mapping[str, str]
    kernels: Mapping[str, Mapping[str, int]]
    rounds_inputs: bool
    verdict: str
    state: tuple[str, ...]
    tokenizer: Tokenizer | None


def write_bundle(parts: BundleParts, path: Path) -> Manifest:
    """Writes a bundle's parts into a folder, whole or not at all.

    Args:
      parts: what goes in.
      path: the folder.

    Returns:
      The manifest of the bundle in the folder.

    Raises:
      FileExistsError: if `path` holds anything but a bundle's own files.
      OSError: if a file cannot be written (the disk is full), naming it.
    """
    bound = len(parts.parameters)
    artifact = parts.artifact
    kept, operands = _kept(bound, parts.operands)
    with atomic_folder(path, files.MANIFEST, own_files) as folder:
        # Pair by pair, inputs before outputs: the order of `Manifest.recorded`.
        recorded = [array for pair in parts.recorded for array in (*pair.inputs, *pair.outputs)]
        contents: dict[str, Callable[[], bytes]] = {
            files.LIBRARY: parts.library.read_bytes,
            files.PARAMETERS: lambda: pack_arrays([parts.parameters[index] for index in kept]),
            files.DERIVED: lambda: pack_arrays(parts.derived),
            files.ARTIFACT: artifact.to_bytes,
            files.SELFCHECK: lambda: pack_arrays(recorded),
            files.PROGRAM: _PROGRAM.read_bytes,
        }
        if parts.tokenizer is not None:
            tokenizer = parts.tokenizer
            contents[files.TOKENIZER] = lambda: pack_tokenizer(tokenizer)
        written = {}
        for name in contents:
            content = contents[name]()  # one in memory at a time
            written[name] = {"size": len(content), "sha256": digest(content)}
            write_atomically(folder / name, content)
        # After all other files, whose sizes and checksums it has.
        manifest = Manifest(
            target_name=parts.target_name,
            target=parts.target,
            machine=parts.machine,
            processor_features=parts.processor_features,
            arguments=parts.arguments,
            parameters=tuple(artifact.inputs[index] for index in kept),
            derived=tuple(
                TensorSpec(f"derived[{index}]", array.shape, str(array.dtype))
                for index, array in enumerate(parts.derived)
            ),
            operands=operands,
            inputs=artifact.inputs[bound:],
            outputs=artifact.outputs,
            structure=artifact.structure,
            versions=parts.versions,
            files=written,
            kernels=parts.kernels,
            batches=tuple(pair.batch for pair in parts.recorded if pair.batch is not None),
            rounds_inputs=parts.rounds_inputs,
            verdict=parts.verdict,
            state=parts.state,
        )
        write_atomically(folder / files.MANIFEST, manifest.to_bytes())
    return manifest


def _kept(bound: int, operands: Sequence[int]) -> tuple[list[int], tuple[int, ...]]:
    """Selects the parameters that the library takes, and renumbers its operands.

    Operands become indices of the parameters kept, followed by derived arrays.

    A weight that was laid out anew, or written as codes, is not stored twice.
    """
    kept = sorted(index for index in set(operands) if index < bound)
    places = {index: place for place, index in enumerate(kept)}
    # Derived arrays follow the parameters: their indices fall by the number of those left out.
    derived = len(kept) - bound
    return kept, tuple(places[i] if i < bound else i + derived for i in operands)
