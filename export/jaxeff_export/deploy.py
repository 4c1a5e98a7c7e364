"""From a function and its trained parameters to a bundle: the whole road in one call.

export (JAX to StableHLO), import (StableHLO to Relax), compute what depends on the parameters
alone, compile the rest (Relax to machine code), link, and record what JAX itself computes, so that
every board can be checked against it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxeff_export.artifact import export, package_versions
from jaxeff_export.bundle import Bundle, Parts, write_bundle
from jaxeff_export.instrument import instrument_sources
from jaxeff_export.signature import SignatureError, dtype_of
from jaxeff_export.target import resolve_target, target_machine
from jaxeff_export.toolchain import ToolchainError, find_linker

if TYPE_CHECKING:
    from jaxeff_export.lifting import Lifted


def deploy(
    f: Callable[..., Any],
    example_args: Sequence[Any],
    target: str | Mapping[str, Any] = "host",
    path: str | Path | None = None,
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

    Returns:
      The bundle; ``bundle.run(*inputs, board=...)`` calls it.

    Raises:
      TargetError: if the target is unknown.
      ToolchainError: if no linker for it is installed, or linking fails.
      SignatureError: if an argument holds something else than arrays, or JAX's result on the
        example has NaN, which nothing can be checked against.
      UnsupportedOpError: if the function uses an operation the importer does not know.
    """
    from jaxeff_export.compilation import compile_module
    from jaxeff_export.importer import import_stablehlo
    from jaxeff_export.lifting import lift_parameters

    if not example_args:
        raise SignatureError("example_args is empty; give (params, *inputs)")
    resolved = resolve_target(target)
    linker = find_linker(resolved)
    leaves = _concrete(example_args)
    bound = len(jax.tree.leaves(example_args[0]))

    artifact = export(f, example_args)
    values = [
        np.asarray(leaf).astype(dtype_of(spec.dtype), copy=False)
        for leaf, spec in zip(leaves, artifact.inputs, strict=True)
    ]
    outputs, treedef = _reference(f, example_args, [spec.name for spec in artifact.outputs])

    lifted = lift_parameters(import_stablehlo(artifact.stablehlo), bound)
    executable = compile_module(lifted.main, resolved)
    with tempfile.TemporaryDirectory(prefix="jaxeff-link-") as workspace:
        library = Path(workspace) / "library.so"
        try:
            executable.export_library(
                str(library), workspace_dir=workspace, cc=linker, **instrument_sources()
            )
        except RuntimeError as error:
            lines = str(error).strip().splitlines() or ["it gives no reason"]
            raise ToolchainError(f"{linker} could not link the library: {lines[-1]}") from error
        parts = Parts(
            library=library,
            artifact=artifact,
            parameters=values[:bound],
            derived=_derived(lifted, values[:bound]),
            operands=lifted.operands,
            inputs=values[bound:],
            outputs=outputs,
            target_name=target if isinstance(target, str) else str(resolved.get("mcpu", "custom")),
            target=resolved,
            machine=target_machine(resolved),
            versions=package_versions("jaxeff", "jax", "jaxlib", "apache-tvm", "apache-tvm-ffi"),
            treedef=treedef,
        )
        return write_bundle(parts, path)


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


def _reference(
    f: Callable[..., Any], example_args: Sequence[Any], names: Sequence[str]
) -> tuple[list[np.ndarray], Any]:
    """What JAX computes from the example, and the structure it comes in."""
    leaves, treedef = jax.tree.flatten(jax.jit(f)(*example_args))
    outputs = [np.asarray(leaf) for leaf in leaves]
    for name, output in zip(names, outputs, strict=True):
        if np.isnan(output.astype(np.complex128)).any():
            raise SignatureError(
                f"JAX computes NaN in {name} from the example, and nothing can be checked against "
                "that; give example inputs the function is defined for"
            )
    return outputs, treedef
