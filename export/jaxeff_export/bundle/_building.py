"""Builds a bundle of an exported function: imports, compiles, links and writes it.

`deploy` builds what it has just exported; `tune` builds an existing bundle again.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
import tempfile
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxeff.store import require_absent
from jaxeff_export.artifact import package_versions
from jaxeff_export.boards import run_on_threads
from jaxeff_export.bundle._assembly import BundleParts, write_bundle
from jaxeff_export.bundle._bundle import Bundle
from jaxeff_export.bundle._example import Example, NamedTarget, c_order, lift
from jaxeff_export.bundle.files import MANIFEST, own_files
from jaxeff_export.bundle.running import instrument_sources, require_numbers
from jaxeff_export.clib import write_library
from jaxeff_export.schedules import TuningDatabase
from jaxeff_export.targets import ToolchainError, has_runtime, kernel_features, target_machine

if TYPE_CHECKING:
    from jaxeff_export.compiler.passes import LiftedModule

Progress = Callable[[str], None]


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
      database: database of schedules, which replace the default ones where it has better ones.

    Raises:
      CLibraryError: if a target without TVM's runtime can't have the function as a C library.
      FileExistsError: if `path` holds anything but a bundle's own files.
      SignatureError: if inputs are rounded to codes, and a recorded one holds NaN.
      ToolchainError: if linking fails.
      TuningError: if the database is damaged.
      UnsupportedOpError: if the artifact uses an operation the importer does not know.
    """
    # Start-up time: the compiler loads TVM, which takes seconds.
    from jaxeff_export.compiler import Work, lower_module, schedule_module, tuned_schedules, work_of

    if path is None:
        home = Path(tempfile.mkdtemp(prefix="jaxeff-bundle-"))
        try:
            bundle = build(example, target, home / "bundle", say, database)
        except BaseException:
            shutil.rmtree(home, ignore_errors=True)
            raise
        # The folder is removed once nobody holds the bundle, or when the process ends.
        weakref.finalize(bundle, shutil.rmtree, home, ignore_errors=True)
        return bundle
    path = Path(path)
    # Before minutes of compiling; checked once more when the folder is written.
    require_absent(path, MANIFEST, own_files)
    rounded = example.artifact.rounds_inputs
    if rounded:
        # Otherwise the bundle would refuse its own self-check.
        for pair in example.recorded:
            require_numbers(pair.inputs, example.artifact.inputs[len(example.bound) :])
    tuned = None if database is None else tuned_schedules(database, target.settings)
    say("importing StableHLO")
    lifted = lift(example, target)
    # Arrays of a bundle that is built again are taken over, so that both hold the same bits.
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
                example,
                target,
                lifted,
                operands,
                name="model",
                rounds_inputs=rounded,
                tuned=tuned,
                **any_device,
            )
            made = write_library(order, Path(workspace) / "c")
            library = made.folder / "libmodel.a"
        parts = BundleParts(
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
            rounds_inputs=rounded,
            verdict=example.verdict,
            state=example.state,
            tokenizer=example.tokenizer,
        )
        return Bundle(path, write_bundle(parts, path), example.treedef)


# Neither debugging information nor pages of padding: a small network's would weigh more than it.
_LEAN = ("-Wl,--strip-debug", "-Wl,-z,noseparate-code")


def _link(executable: Any, library: Path, linker: str) -> None:
    from tvm.support.cc import create_shared

    # Start-up time: the compiler loads TVM.
    from jaxeff_export.compiler import in_memory_files

    sources = instrument_sources()
    sources["options"] += _LEAN
    objects = [library.with_name(name) for name in ("lib0.o", "devc.o")]  # as TVM calls them
    # LLVM writes into memory, from where files are written: on a full disk this raises an error
    # that names the file.
    with in_memory_files(objects) as to_disk:

        def link(made: str, files: Sequence[str], **options: Any) -> None:
            to_disk()
            create_shared(made, files, **options)

        try:
            executable.export_library(
                str(library), fcompile=link, workspace_dir=str(library.parent), cc=linker, **sources
            )
        except RuntimeError as error:
            # A full disk is named anywhere in the linker's output; other reasons are its last line.
            lines = str(error).strip().splitlines() or ["it gives no reason"]
            full = [line for line in lines if os.strerror(errno.ENOSPC) in line]
            reason = (full or lines)[-1]
            raise ToolchainError(f"{linker} could not link the library: {reason}") from error


def _derived(lifted: LiftedModule, parameters: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Computes what depends on the parameters alone, on this machine whatever the target."""
    import tvm
    from joblib import cpu_count

    # Start-up time: the compiler loads TVM.
    from jaxeff_export.compiler import compile_module

    if lifted.derive is None:
        return []
    # A deep network derives arrays of every layer: machine code of that many calls, which are
    # made once, takes longer than what they compute.
    machine = tvm.relax.VirtualMachine(compile_module(lifted.derive, once=True), tvm.cpu())
    given = [tvm.runtime.tensor(value) for value in parameters]
    # Two threads of one physical core would share its vector units.
    arrays = run_on_threads(cpu_count(only_physical_cores=True), lambda: machine["main"](*given))
    return [array.numpy() for array in arrays]
