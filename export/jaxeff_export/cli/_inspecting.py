"""``inspect``: what a bundle or an artifact holds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jaxeff_export.cli._terminal import console, failures_in_one_line, table

if TYPE_CHECKING:
    from jaxeff_export.artifact import TensorSpec

    _Groups = Sequence[tuple[str, Sequence[TensorSpec]]]


def inspect(
    path: Annotated[Path, typer.Argument(help="A bundle's folder, or an artifact's file.")],
) -> None:
    """Show what a bundle or an artifact holds, after checking every byte of it.

    The names are those that npz files for `compile` and `run` use.
    """
    with failures_in_one_line():
        if path.is_file():
            _show_artifact(path)
        else:
            _show_bundle(path)


def _show_artifact(path: Path) -> None:
    # JAX takes seconds to import: `--help` and other commands do without.
    from jaxeff_export.artifact import Artifact

    artifact = Artifact.load(path)
    # Nothing in an artifact says which arguments are parameters: the first, as for `deploy`.
    bound = artifact.leaf_count(1) if len(artifact.arguments) > 1 else 0
    groups = [
        ("parameter", artifact.inputs[:bound]),
        ("input", artifact.inputs[bound:]),
        ("output", artifact.outputs),
    ]
    _show_arrays(f"{path}: StableHLO", groups)
    _show_versions(artifact.versions)


def _show_bundle(path: Path) -> None:
    # JAX takes seconds to import: `--help` and other commands do without.
    from jaxeff_export.bundle import Bundle

    # Loading checks every file, so those listed below are intact.
    manifest = Bundle.load(path).manifest
    groups = [
        ("parameter", manifest.parameters),
        ("derived", manifest.derived),
        ("input", manifest.inputs),
        ("output", manifest.outputs),
    ]
    _show_arrays(f"{path}: {manifest.target_name} ({manifest.machine})", groups)
    console.print(f"target: {json.dumps(dict(manifest.target))}", markup=False, highlight=False)
    for name, facts in manifest.files.items():
        console.print(f"{name}: {facts['size']:,} bytes, intact")
    if manifest.verdict:
        console.print(manifest.verdict, markup=False, highlight=False)
    _show_versions(manifest.versions)


def _show_arrays(title: str, groups: _Groups) -> None:
    made = table("role", "name", "shape", "dtype (zero, step of codes)", title=title)
    for role, specs in groups:
        for spec in specs:
            shape = "×".join(map(str, spec.shape)) or "scalar"
            # What codes stand for: (q - zero) * step.
            of = "" if spec.grid is None else " ({1}, {0:.6g})".format(*spec.grid)
            made.add_row(role, spec.name, shape, spec.dtype + of)
    console.print(made, markup=False)


def _show_versions(versions: object) -> None:
    assert isinstance(versions, dict)
    console.print(", ".join(f"{name} {version}" for name, version in versions.items()))
