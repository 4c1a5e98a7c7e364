"""``compile``: from an exported function to a bundle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jaxeff_export.cli._terminal import console, failures_in_one_line, steps
from jaxeff_export.schedules import TuningError
from jaxeff_export.targets import TargetError, resolve_target, target_names

if TYPE_CHECKING:
    from jaxeff_export.bundle import Bundle


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
    parameters: Annotated[
        int | None,
        typer.Option(
            help="How many of the first arguments are parameters; 1 by default, to be said for a "
            "function of one argument."
        ),
    ] = None,
    any_batch: Annotated[
        bool,
        typer.Option(
            "--any-batch",
            help="Take any number of examples: the first axis of all inputs is a batch. An "
            "artifact was exported with that or without.",
        ),
    ] = False,
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
            options = {"parameters": parameters, "database": database, "progress": step}
            made = _compile(source, arrays or [], resolved, bundle, any_batch, options)
        console.print(f"{bundle} is compiled for {made.manifest.target_name}", markup=False)


def _compile(
    source: str,
    arrays: list[Path],
    target: str | Mapping[str, Any],
    path: Path,
    any_batch: bool,
    options: Mapping[str, Any],
) -> Bundle:
    # JAX takes seconds to import: `--help` and other commands do without.
    from jaxeff_export.artifact import Artifact, SignatureError
    from jaxeff_export.bundle import deploy, deploy_artifact
    from jaxeff_export.cli._arrays import read_arrays
    from jaxeff_export.cli._models import example_of, require_call

    database = options["database"]
    # A database makes the folder it is given: a typing error would be an empty one.
    if database is not None and not database.is_dir():
        raise TuningError(f"there is no folder {database}; tune a bundle with --database first")
    module, colon, function = source.partition(":")
    # A path may have a colon as well; a file that is there is an artifact.
    if colon and not Path(source).exists():
        f, example = example_of(module, function)
        require_call(source, f, example)
        return deploy(f, example, target, path, any_batch=any_batch, **options)
    artifact = Artifact.load(source)
    if any_batch and not artifact.any_batch:
        raise SignatureError(
            f"{source} is an artifact of fixed shapes; export it again with any_batch=True"
        )
    values = read_arrays(arrays, artifact.inputs)
    named = {spec.name: value for spec, value in zip(artifact.inputs, values, strict=True)}
    return deploy_artifact(artifact, named, target, path, **options)


def _target(given: str) -> str | Mapping[str, Any]:
    if not given.lstrip().startswith("{"):
        resolve_target(given)  # what nobody knows is better told before the work than after it
        return given
    try:
        return resolve_target(json.loads(given))
    except json.JSONDecodeError as error:
        raise TargetError(f"--target is no JSON: {error}") from error
