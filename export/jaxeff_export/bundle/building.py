"""From an exported function and values for its inputs to a bundle: import, compile, link, write.

`deploy` builds what it has just exported, `tune` what a bundle was built from.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxeff.store import require_free
from jaxeff_export.artifact.artifact import Artifact, package_versions
from jaxeff_export.artifact.signature import dtype_of
from jaxeff_export.boards.threads import threads
from jaxeff_export.bundle.assembly import Parts, write_bundle
from jaxeff_export.bundle.bundle import Bundle
from jaxeff_export.bundle.instrument import instrument_sources
from jaxeff_export.bundle.manifest import MANIFEST, own_files
from jaxeff_export.bundle.selfcheck import Pair, tolerance
from jaxeff_export.clib.errors import CLibraryError
from jaxeff_export.clib.interface import identifier
from jaxeff_export.clib.library import Order, write_library
from jaxeff_export.extras import require_extra
from jaxeff_export.schedules.database import TuningDatabase
from jaxeff_export.targets.target import (
    has_runtime,
    kernel_features,
    resolve_target,
    target_machine,
)
from jaxeff_export.targets.toolchain import ToolchainError, find_linker

if TYPE_CHECKING:
    from jaxeff_export.compiler.lifting import Lifted

Progress = Callable[[str], None]


@dataclass(frozen=True)
class NamedTarget:
    """What is compiled for, and with which linker.

    Attributes:
      name: the target as it was asked for.
      settings: the TVM target dict.
      linker: a C compiler for it.
    """

    name: str
    settings: Mapping[str, Any]
    linker: str

    @classmethod
    def of(cls, target: str | Mapping[str, Any]) -> NamedTarget:
        """A target by name or as a dict.

        Raises:
          MissingExtraError: if TVM is not installed.
          TargetError: if it is unknown.
          ToolchainError: if no linker for it is installed.
        """
        require_extra("tvm", "deploying")
        resolved = resolve_target(target)
        name = target if isinstance(target, str) else str(resolved.get("mcpu", "custom"))
        return cls(name, resolved, find_linker(resolved))

    @classmethod
    def of_bundle(cls, bundle: Bundle) -> NamedTarget:
        """The target that a bundle was compiled for."""
        settings = bundle.manifest.target
        return cls(bundle.manifest.target_name, settings, find_linker(settings))


@dataclass(frozen=True)
class Example:
    """An artifact with values for its inputs.

    Attributes:
      artifact: the exported function.
      parameters: how many of the artifact's first arguments are parameters.
      bound: the values of their leaves; zeros for those that a bundle had no use for.
      recorded: pairs of values of the other inputs and what JAX computed from them.
      treedef: the exact structure of results, if this process knows it.
      derived: what was computed from the leaves, if it was.
    """

    artifact: Artifact
    parameters: int
    bound: Sequence[np.ndarray]
    recorded: Sequence[Pair]
    treedef: Any = None
    derived: Sequence[np.ndarray] | None = None

    @classmethod
    def of_bundle(cls, bundle: Bundle) -> Example:
        """What a bundle was built from."""
        artifact = bundle.artifact
        parameters = len(artifact.arguments) - len(bundle.manifest.arguments)
        stored = dict(
            zip((s.name for s in bundle.manifest.parameters), bundle.parameters, strict=True)
        )
        bound = [
            stored[spec.name]
            if spec.name in stored
            else np.zeros(tuple(int(n) for n in spec.shape), dtype_of(spec.dtype))
            for spec in artifact.inputs[: artifact.leaf_count(parameters)]
        ]
        return cls(artifact, parameters, bound, bundle.recorded, bundle.treedef, bundle.derived)


def lift(example: Example, target: NamedTarget) -> Lifted:
    """The imported function, what depends on its parameters alone apart from the rest.

    Raises:
      UnsupportedOpError: if the artifact uses an operation the importer does not know.
    """
    from jaxeff_export.compiler.compilation import bind_parameters
    from jaxeff_export.importer import import_stablehlo
    from jaxeff_export.operators import operators_for

    composites = operators_for(target.settings, example.artifact.any_batch)
    module = import_stablehlo(example.artifact.stablehlo, composites=composites)
    return bind_parameters(module, len(example.bound), target.settings)


def build(
    example: Example,
    target: NamedTarget,
    path: str | Path | None,
    say: Progress,
    database: TuningDatabase | None = None,
) -> Bundle:
    """Compiles and links a library, and writes a bundle around it.

    Args:
      example: what to build.
      target: what to build it for.
      path: the bundle's folder; None for a temporary one.
      say: called with one line per step.
      database: whose schedules replace the default ones where it has better ones.

    Raises:
      CLibraryError: if a target without TVM's runtime can't have the function as a C library.
      FileExistsError: if `path` holds anything but a bundle's own files.
      ToolchainError: if linking fails.
      TuningError: if the database is damaged.
      UnsupportedOpError: if the artifact uses an operation the importer does not know.
    """
    from jaxeff_export.compiler.compilation import lower_module, schedule_module
    from jaxeff_export.compiler.work import Work, work_of
    from jaxeff_export.schedules.replaying import tuned_schedules

    if path is not None:
        require_free(Path(path), MANIFEST, own_files)
    tuned = None if database is None else tuned_schedules(database, target.settings)
    say("importing StableHLO")
    lifted = lift(example, target)
    derived = _derived(lifted, example.bound) if example.derived is None else example.derived
    works: list[Work] = []  # a C library's kernels are never modelled
    with tempfile.TemporaryDirectory(prefix="jaxeff-link-") as workspace:
        library = Path(workspace) / "library.so"
        say(f"compiling for {target.name}")
        if has_runtime(target.settings):
            kernels = schedule_module(lifted.main, target.settings, tuned)
            works = work_of(kernels)
            executable = lower_module(kernels, target.settings)
            say("linking")
            _link(executable, library, target.linker)
        else:
            bound = [*example.bound, *derived]
            operands = [bound[index] for index in lifted.operands]
            any_device = {"flash": sys.maxsize, "ram": sys.maxsize}  # export_c is told of one
            order = c_order(
                example, target, lifted, operands, name="model", tuned=tuned, **any_device
            )
            made = write_library(order, Path(workspace) / "c")
            library = made.folder / "libmodel.a"
        parts = Parts(
            library=library,
            artifact=example.artifact,
            arguments=example.artifact.arguments[example.parameters :],
            parameters=example.bound,
            derived=derived,
            operands=lifted.operands,
            recorded=example.recorded,
            target_name=target.name,
            target=target.settings,
            machine=target_machine(target.settings),
            processor_features=kernel_features(target.settings),
            versions=package_versions("jaxeff", "jax", "jaxlib", "apache-tvm", "apache-tvm-ffi"),
            kernels={work.name: work.facts for work in works},
            treedef=example.treedef,
        )
        return write_bundle(parts, path)


def c_order(
    example: Example,
    target: NamedTarget,
    lifted: Lifted,
    operands: Sequence[np.ndarray],
    *,
    name: str,
    **more: Any,
) -> Order:
    """What a C library of an example is made of.

    Args:
      example: the function with a recorded call.
      target: what it is for.
      lifted: the function without what depends on its parameters alone.
      operands: what its module takes first.
      name: of the library; made a name in C.
      more: as for `jaxeff_export.clib.library.Order`.

    Raises:
      CLibraryError: if the batch may vary.
    """
    artifact, (pair, *others) = example.artifact, example.recorded
    if others or pair.batch is not None:
        raise CLibraryError(
            "the function takes any batch, and a C library plans its memory in advance; deploy for "
            "a fixed batch, without any_batch"
        )
    return Order(
        name=identifier(name),
        target_name=target.name,
        target=target.settings,
        module=lifted.main,
        operands=operands,
        inputs=artifact.inputs[len(example.bound) :],
        outputs=artifact.outputs,
        given=pair.inputs,
        expected=pair.outputs,
        tolerances=[tolerance(array.dtype) for array in pair.outputs],
        **more,
    )


# Neither debugging information nor pages of padding: a small network's would weigh more than it.
_LEAN = ("-Wl,--strip-debug", "-Wl,-z,noseparate-code")


def _link(executable: Any, library: Path, linker: str) -> None:
    sources = instrument_sources()
    sources["options"] += _LEAN
    try:
        executable.export_library(
            str(library), workspace_dir=str(library.parent), cc=linker, **sources
        )
    except RuntimeError as error:
        lines = str(error).strip().splitlines() or ["it gives no reason"]
        raise ToolchainError(f"{linker} could not link the library: {lines[-1]}") from error


def _derived(lifted: Lifted, parameters: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What depends on the parameters alone, computed on this machine whatever the target."""
    import tvm
    from joblib import cpu_count

    from jaxeff_export.compiler.compilation import compile_module

    if lifted.derive is None:
        return []
    machine = tvm.relax.VirtualMachine(compile_module(lifted.derive), tvm.cpu())
    with threads(cpu_count(only_physical_cores=True)):
        arrays = machine["main"](*(tvm.runtime.tensor(value) for value in parameters))
    return [array.numpy() for array in arrays]
