"""``compile``: from an exported function to a bundle."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import jax
import typer

from jaxeff_export.artifact.artifact import Artifact
from jaxeff_export.artifact.signature import SignatureError, argument_names, flatten_named
from jaxeff_export.bundle.building import Progress
from jaxeff_export.bundle.bundle import Bundle
from jaxeff_export.cli.arrays import read_arrays
from jaxeff_export.cli.terminal import console, failures_in_one_line, steps
from jaxeff_export.deployment import deploy, deploy_artifact
from jaxeff_export.schedules.errors import TuningError
from jaxeff_export.targets.target import TargetError, resolve_target, target_names


def compile_bundle(
    source: Annotated[
        str,
        typer.Argument(
            help="An artifact that jaxeff_export.export(...).save(...) wrote, or module:function, "
            "a function without arguments that returns (f, (parameters, *inputs))."
        ),
    ],
    bundle: Annotated[Path, typer.Argument(help="The bundle's folder, written or replaced.")],
    arrays: Annotated[
        list[Path] | None,
        typer.Option(
            help="An npz file with parameters or an example of the inputs, by the names that "
            "inspect shows; needed for an artifact, may be repeated."
        ),
    ] = None,
    target: Annotated[
        str, typer.Option(help=f"{', '.join(target_names())}, or a TVM target as JSON.")
    ] = "host",
    database: Annotated[
        Path | None,
        typer.Option(help="A folder that tune filled, for faster schedules where it knows some."),
    ] = None,
) -> None:
    """Compile a function into a bundle.

    The function's first argument is its parameters (a trained posterior), which the bundle binds.
    The inputs fix the shapes, and are recorded with what JAX computes from them, so that `check`
    has something to replay: give a real example.
    """
    with failures_in_one_line():
        resolved = _target(target)
        with steps() as step:
            made = _compile(source, arrays or [], resolved, bundle, database, step)
        console.print(f"{bundle} is compiled for {made.manifest.target_name}", markup=False)


def _compile(
    source: str,
    arrays: list[Path],
    target: str | Mapping[str, Any],
    path: Path,
    database: Path | None,
    progress: Progress,
) -> Bundle:
    if database is not None and not database.is_dir():
        raise TuningError(f"there is no folder {database}; tune a bundle with --database first")
    module, colon, function = source.partition(":")
    if colon and not Path(source).exists():
        f, example = _model(module, function)
        _require_call(source, f, example)
        return deploy(f, example, target, path, database=database, progress=progress)
    artifact = Artifact.load(source)
    values = read_arrays(arrays, artifact.inputs)
    named = {spec.name: value for spec, value in zip(artifact.inputs, values, strict=True)}
    return deploy_artifact(artifact, named, target, path, database=database, progress=progress)


def _target(given: str) -> str | Mapping[str, Any]:
    if not given.lstrip().startswith("{"):
        resolve_target(given)  # what nobody knows is better told before the work than after it
        return given
    try:
        return resolve_target(json.loads(given))
    except json.JSONDecodeError as error:
        raise TargetError(f"--target is no JSON: {error}") from error


def _model(module: str, function: str) -> tuple[Any, Any]:
    """What ``module:function`` returns, with modules of the current folder at hand."""
    where = f"{module}:{function}"
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        made = getattr(importlib.import_module(module), function)()
        f, example = made
    except Exception as error:
        raise SignatureError(
            f"{where} gives no (f, (parameters, *inputs)): {type(error).__name__}: {error}"
        ) from error
    if not callable(f) or not isinstance(example, tuple | list):
        raise SignatureError(f"{where} gives no (f, (parameters, *inputs)), but {type(made)}")
    return f, example


def _require_call(where: str, f: Callable[..., Any], example: Sequence[Any]) -> None:
    """Raises `SignatureError` where the user's function fails on the user's own example."""
    flatten_named(example, argument_names(f, len(example)))  # names what is no array
    try:
        jax.eval_shape(f, *example)
    except Exception as error:
        raise SignatureError(
            f"the function of {where} fails on its example: {type(error).__name__}: {error}"
        ) from error
