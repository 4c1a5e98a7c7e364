"""From a function and its trained parameters to a bundle: the whole road in one call.

export (JAX to StableHLO), import (StableHLO to Relax), compute what depends on the parameters
alone, compile the rest (Relax to machine code), link, and record what JAX itself computes, so that
every board can be checked against it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxeff_export.artifact.artifact import Artifact, export
from jaxeff_export.artifact.signature import SignatureError, argument_names, check_array, dtype_of
from jaxeff_export.bundle.building import Example, NamedTarget, Progress, build
from jaxeff_export.bundle.bundle import Bundle
from jaxeff_export.schedules.database import TuningDatabase


def deploy(
    f: Callable[..., Any],
    example_args: Sequence[Any],
    target: str | Mapping[str, Any] = "host",
    path: str | Path | None = None,
    *,
    parameters: int | None = None,
    database: str | Path | None = None,
    progress: Progress | None = None,
) -> Bundle:
    """Compiles ``f(params, *inputs)`` into a bundle.

    Args:
      f: a pure function whose first argument is the parameters, e.g. ``jaxeff.moments(f)``.
      example_args: ``(params, *inputs)``. The parameters (a trained posterior) go into the bundle;
        the inputs fix the shapes and dtypes, and their values become the self-check, so give a
        real example.
      target: ``"host"``, ``"cortex-a53"``, ``"cortex-a72"``, ``"cortex-a76"``, or a TVM target
        dict.
      path: the bundle's folder, written whole or not at all; None for a temporary one that lives
        as long as the returned object.
      parameters: how many of the first arguments are parameters: 0 for a function of data alone,
        2 for parameters and batch statistics. By default 1; of a function of one argument nothing
        tells whether that is parameters or data, and it has to be said.
      database: a folder that `tune` filled: kernels it knows for this target get the schedules
        found there, the others the default ones.
      progress: called with one line per step.

    Returns:
      The bundle; ``bundle.run(*inputs, board=...)`` calls it.

    Raises:
      MissingExtraError: if TVM is not installed.
      TargetError: if the target is unknown.
      ToolchainError: if no linker for it is installed, or linking fails.
      SignatureError: if an argument holds something else than arrays, there is a single argument
        and no `parameters`, there are fewer arguments than `parameters`, or JAX's result on the
        example has NaN, which nothing can be checked against.
      FileExistsError: if `path` holds anything but a bundle's own files.
      TuningError: if `database` is none, damaged, or of another TVM version.
      UnsupportedOpError: if the function uses an operation the importer does not know.
    """
    if not example_args:
        raise SignatureError("example_args is empty; give (params, *inputs)")
    count = _parameters(argument_names(f, len(example_args)), parameters)
    place = NamedTarget.of(target)
    records = None if database is None else TuningDatabase(database)
    leaves = _concrete(example_args)
    say = progress or _silence
    say("exporting to StableHLO")
    artifact = export(f, example_args)
    values = [
        np.asarray(leaf).astype(dtype_of(spec.dtype), copy=False)
        for leaf, spec in zip(leaves, artifact.inputs, strict=True)
    ]
    say("computing the reference with JAX")
    results, treedef = jax.tree.flatten(jax.jit(f)(*example_args))
    outputs = _reference(artifact, results)
    example = Example(artifact, values, count, outputs, treedef)
    return build(example, place, path, say, records)


def deploy_artifact(
    artifact: Artifact,
    arrays: Mapping[str, np.ndarray],
    target: str | Mapping[str, Any] = "host",
    path: str | Path | None = None,
    *,
    parameters: int | None = None,
    database: str | Path | None = None,
    progress: Progress | None = None,
) -> Bundle:
    """Compiles a saved artifact into a bundle; its first argument is the parameters.

    Args:
      artifact: what `export` made.
      arrays: the parameters and an example of the inputs, one array per name in
        ``artifact.inputs``.
      target: as for `deploy`.
      path: as for `deploy`.
      parameters: as for `deploy`.
      database: as for `deploy`.
      progress: as for `deploy`.

    Returns:
      The bundle.

    Raises:
      MissingExtraError: if TVM is not installed.
      SignatureError: naming an array that is missing or of another shape or dtype; about
        `parameters`, as for `deploy`.
      TargetError: if the target is unknown.
      ToolchainError: if no linker for it is installed, or linking fails.
      FileExistsError: if `path` holds anything but a bundle's own files.
      TuningError: if `database` is none, damaged, or of another TVM version.
      UnsupportedOpError: if the artifact uses an operation the importer does not know.
    """
    count = _parameters(artifact.arguments, parameters)
    place = NamedTarget.of(target)
    records = None if database is None else TuningDatabase(database)
    say = progress or _silence
    if missing := [spec.name for spec in artifact.inputs if spec.name not in arrays]:
        raise SignatureError(
            f"{len(missing)} of the artifact's {len(artifact.inputs)} arrays are missing, "
            f"first {missing[0]}"
        )
    values = [check_array(np.asarray(arrays[spec.name]), spec) for spec in artifact.inputs]
    say("computing the reference with JAX")
    outputs = _reference(artifact, artifact.call(*values))
    example = Example(artifact, values, count, outputs)
    return build(example, place, path, say, records)


def _parameters(arguments: Sequence[str], given: int | None) -> int:
    """How many of the first arguments are parameters."""
    if given is None:
        if len(arguments) == 1:
            raise SignatureError(
                f"{arguments[0]} is the only argument, and nothing tells whether it is parameters, "
                "which a bundle binds, or data, which it takes in each call; give parameters=1 or "
                "parameters=0"
            )
        return 1
    if not 0 <= given <= len(arguments):
        raise SignatureError(
            f"parameters is {given}, but of {len(arguments)} arguments: {', '.join(arguments)}"
        )
    return given


def _silence(line: str) -> None:
    """Shows no progress."""


def _concrete(example_args: Sequence[Any]) -> list[Any]:
    leaves = jax.tree.leaves(tuple(example_args))
    if any(isinstance(leaf, jax.ShapeDtypeStruct | jax.core.Tracer) for leaf in leaves):
        raise SignatureError(
            "deploy needs example arguments with values, for the parameters it binds and the "
            "self-check it records; export takes shapes alone"
        )
    return leaves


def _reference(artifact: Artifact, results: Sequence[Any]) -> list[np.ndarray]:
    """What JAX computes from the example, if it can be compared with."""
    outputs = [np.asarray(leaf) for leaf in results]
    for spec, output in zip(artifact.outputs, outputs, strict=True):
        if np.isnan(output.astype(np.complex128)).any():
            raise SignatureError(
                f"JAX computes NaN in {spec.name} from the example, and nothing can be checked "
                "against that; give example inputs the function is defined for"
            )
    return outputs
