"""From a function and its trained parameters to a bundle: the whole road in one call.

export (JAX to StableHLO), import (StableHLO to Relax), compute what depends on the parameters
alone, compile the rest (Relax to machine code), link, and record what JAX itself computes, so that
every board can be checked against it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxeff_export.archive import require_free
from jaxeff_export.artifact import Artifact, export, package_versions
from jaxeff_export.assembly import Parts, write_bundle
from jaxeff_export.bundle import MANIFEST, Bundle
from jaxeff_export.instrument import instrument_sources
from jaxeff_export.signature import SignatureError, check_array, dtype_of
from jaxeff_export.target import kernel_features, resolve_target, target_machine
from jaxeff_export.toolchain import ToolchainError, find_linker

if TYPE_CHECKING:
    from jaxeff_export.lifting import Lifted


Progress = Callable[[str], None]


def deploy(
    f: Callable[..., Any],
    example_args: Sequence[Any],
    target: str | Mapping[str, Any] = "host",
    path: str | Path | None = None,
    *,
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
      progress: called with one line per step.

    Returns:
      The bundle; ``bundle.run(*inputs, board=...)`` calls it.

    Raises:
      TargetError: if the target is unknown.
      ToolchainError: if no linker for it is installed, or linking fails.
      SignatureError: if an argument holds something else than arrays, or JAX's result on the
        example has NaN, which nothing can be checked against.
      FileExistsError: if `path` holds something that is no bundle.
      UnsupportedOpError: if the function uses an operation the importer does not know.
    """
    if not example_args:
        raise SignatureError("example_args is empty; give (params, *inputs)")
    place = _Target.of(target)
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
    example = _Example(artifact, values, len(jax.tree.leaves(example_args[0])), outputs, treedef)
    return _build(example, place, path, say)


def deploy_artifact(
    artifact: Artifact,
    arrays: Mapping[str, np.ndarray],
    target: str | Mapping[str, Any] = "host",
    path: str | Path | None = None,
    *,
    progress: Progress | None = None,
) -> Bundle:
    """Compiles a saved artifact into a bundle; its first argument is the parameters.

    Args:
      artifact: what `export` made.
      arrays: the parameters and an example of the inputs, one array per name in
        ``artifact.inputs``.
      target: as for `deploy`.
      path: as for `deploy`.
      progress: as for `deploy`.

    Returns:
      The bundle.

    Raises:
      SignatureError: naming an array that is missing or of another shape or dtype.
      TargetError: if the target is unknown.
      ToolchainError: if no linker for it is installed, or linking fails.
      FileExistsError: if `path` holds something that is no bundle.
      UnsupportedOpError: if the artifact uses an operation the importer does not know.
    """
    place = _Target.of(target)
    say = progress or _silence
    if missing := [spec.name for spec in artifact.inputs if spec.name not in arrays]:
        raise SignatureError(
            f"{len(missing)} of the artifact's {len(artifact.inputs)} arrays are missing, "
            f"first {missing[0]}"
        )
    values = [check_array(np.asarray(arrays[spec.name]), spec) for spec in artifact.inputs]
    say("computing the reference with JAX")
    outputs = _reference(artifact, artifact.call(*values))
    example = _Example(artifact, values, artifact.parameter_count, outputs)
    return _build(example, place, path, say)


def _silence(line: str) -> None:
    """Shows no progress."""


@dataclass(frozen=True)
class _Target:
    """What is compiled for, and with which linker."""

    name: str
    settings: Mapping[str, Any]
    linker: str

    @classmethod
    def of(cls, target: str | Mapping[str, Any]) -> _Target:
        resolved = resolve_target(target)
        name = target if isinstance(target, str) else str(resolved.get("mcpu", "custom"))
        return cls(name, resolved, find_linker(resolved))


@dataclass(frozen=True)
class _Example:
    """An artifact with values for its inputs, the first `bound` of them parameters."""

    artifact: Artifact
    values: Sequence[np.ndarray]
    bound: int
    outputs: Sequence[np.ndarray]
    treedef: Any = None


def _build(example: _Example, target: _Target, path: str | Path | None, say: Progress) -> Bundle:
    from jaxeff_export.compilation import bind_parameters, compile_module
    from jaxeff_export.importer import import_stablehlo
    from jaxeff_export.operators import OPERATORS

    if path is not None:
        require_free(Path(path), MANIFEST)
    say("importing StableHLO")
    module = import_stablehlo(example.artifact.stablehlo, composites=OPERATORS)
    parameters = example.values[: example.bound]
    say(f"compiling for {target.name}")
    lifted = bind_parameters(module, example.bound, target.settings)
    executable = compile_module(lifted.main, target.settings)
    with tempfile.TemporaryDirectory(prefix="jaxeff-link-") as workspace:
        library = Path(workspace) / "library.so"
        say("linking")
        _link(executable, library, target.linker)
        parts = Parts(
            library=library,
            artifact=example.artifact,
            parameters=parameters,
            derived=_derived(lifted, parameters),
            operands=lifted.operands,
            inputs=example.values[example.bound :],
            outputs=example.outputs,
            target_name=target.name,
            target=target.settings,
            machine=target_machine(target.settings),
            processor_features=kernel_features(target.settings),
            versions=package_versions("jaxeff", "jax", "jaxlib", "apache-tvm", "apache-tvm-ffi"),
            treedef=example.treedef,
        )
        return write_bundle(parts, path)


def _link(executable: Any, library: Path, linker: str) -> None:
    try:
        executable.export_library(
            str(library), workspace_dir=str(library.parent), cc=linker, **instrument_sources()
        )
    except RuntimeError as error:
        lines = str(error).strip().splitlines() or ["it gives no reason"]
        raise ToolchainError(f"{linker} could not link the library: {lines[-1]}") from error


def _concrete(example_args: Sequence[Any]) -> list[Any]:
    leaves = jax.tree.leaves(tuple(example_args))
    if any(isinstance(leaf, jax.ShapeDtypeStruct | jax.core.Tracer) for leaf in leaves):
        raise SignatureError(
            "deploy needs example arguments with values, for the parameters it binds and the "
            "self-check it records; export takes shapes alone"
        )
    return leaves


def _derived(lifted: Lifted, parameters: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What depends on the parameters alone, computed on this machine whatever the target."""
    import tvm

    from jaxeff_export.compilation import compile_module

    if lifted.derive is None:
        return []
    machine = tvm.relax.VirtualMachine(compile_module(lifted.derive), tvm.cpu())
    arrays = machine["main"](*(tvm.runtime.tensor(value) for value in parameters))
    return [array.numpy() for array in arrays]


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
