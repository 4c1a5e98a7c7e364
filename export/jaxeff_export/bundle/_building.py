"""Builds a bundle of an exported function: imports, compiles, links and writes it.

`deploy` builds what it has just exported; `tune` builds an existing bundle again. Its files are
written whole or not at all.
"""

import errno
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxeff.contrib import Tokenizer
from jaxeff.store import atomic_folder, require_absent, write_atomically
from jaxeff_export.artifact import Artifact, TensorSpec, digest, package_versions
from jaxeff_export.bundle import _example, files
from jaxeff_export.bundle._bundle import Bundle
from jaxeff_export.bundle._example import MOST_UNPACKED, lift
from jaxeff_export.bundle.files import pack_arrays
from jaxeff_export.bundle.running import instrument_sources, require_numbers
from jaxeff_export.clib import CLibrary, write_library
from jaxeff_export.runtime import PROGRAM
from jaxeff_export.schedules import TuningDatabase
from jaxeff_export.targets import ToolchainError, has_runtime, kernel_features, target_machine


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
      calls: kernels in the order they are called, with the parameters that they read.
      tiles: by kernel the extents of its result that registers hold at once.
      rounds_inputs: whether the function rounds its data to codes.
      verdict: what is known of the results beside their values.
      state: names of the arguments that the bundle keeps and updates.
      tokenizer: what makes tokens of texts, or None.
      placements: by name of a parameter, which derived array has its numbers, and where.
    """

    library: Path
    artifact: Artifact
    arguments: tuple[str, ...]
    parameters: Sequence[np.ndarray]
    derived: Sequence[np.ndarray]
    operands: tuple[int, ...]
    recorded: Sequence[files.RecordedPair]
    target_name: str
    target: Mapping[str, Any]
    machine: str
    processor_features: tuple[str, ...]
    versions: Mapping[str, str]
    kernels: Mapping[str, Mapping[str, int]]
    calls: tuple[tuple[str, tuple[int, ...]], ...]
    tiles: Mapping[str, tuple[int, ...]]
    rounds_inputs: bool
    verdict: str
    state: tuple[str, ...]
    tokenizer: Tokenizer | None
    placements: Mapping[str, files.ArrayPlaces]


def write_bundle(parts: BundleParts, path: Path) -> files.Manifest:
    """Writes a bundle's parts into a folder, whole or not at all.

    Returns the manifest of the bundle in the folder.
    """
    bound = len(parts.parameters)
    artifact = parts.artifact
    kept, operands = _kept(bound, parts.operands)
    with atomic_folder(path, files.MANIFEST, files.own_files) as folder:
        # Pair by pair, inputs before outputs: the order of `Manifest.recorded`.
        recorded = [array for pair in parts.recorded for array in (*pair.inputs, *pair.outputs)]
        contents: dict[str, Callable[[], bytes]] = {
            files.LIBRARY: parts.library.read_bytes,
            files.PARAMETERS: lambda: pack_arrays([parts.parameters[index] for index in kept]),
            files.DERIVED: lambda: pack_arrays(parts.derived),
            files.ARTIFACT: artifact.to_bytes,
            files.SELFCHECK: lambda: pack_arrays(recorded),
            files.PROGRAM: PROGRAM.read_bytes,
        }
        if parts.tokenizer is not None:
            tokenizer = parts.tokenizer
            contents[files.TOKENIZER] = lambda: files.pack_tokenizer(tokenizer)
        places, placed = _placed(artifact.inputs, kept, parts.placements)
        if places:
            contents[files.PLACES] = lambda: files.pack_places(places)
        names = [spec.name for spec in artifact.inputs]
        unplaced = [i for i in range(bound) if i not in kept and names[i] not in placed]
        if unplaced and sum(array.nbytes for array in parts.parameters) <= MOST_UNPACKED:
            contents[files.UNPACKED] = lambda: pack_arrays([parts.parameters[i] for i in unplaced])
        written = {}
        for name in contents:
            content = contents[name]()  # one in memory at a time
            written[name] = {"size": len(content), "sha256": digest(content)}
            write_atomically(folder / name, content)
        # After all other files, whose sizes and checksums it has.
        manifest = _manifest(parts, kept, operands, written, placed)
        write_atomically(folder / files.MANIFEST, manifest.to_bytes())
    return manifest


def _manifest(
    parts: BundleParts,
    kept: Sequence[int],
    operands: tuple[int, ...],
    written: Mapping[str, Mapping[str, Any]],
    placed: Mapping[str, tuple[int, int, int]],
) -> files.Manifest:
    """Describes a bundle of these parts, whose files are `written`."""
    artifact, bound = parts.artifact, len(parts.parameters)
    return files.Manifest(
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
        calls=parts.calls,
        tiles=parts.tiles,
        batches=tuple(pair.batch for pair in parts.recorded if pair.batch is not None),
        rounds_inputs=parts.rounds_inputs,
        verdict=parts.verdict,
        state=parts.state,
        placed=placed,
    )


def _placed(
    inputs: Sequence[TensorSpec], kept: Sequence[int], placements: Mapping[str, files.ArrayPlaces]
) -> tuple[list[np.ndarray], dict[str, tuple[int, int, int]]]:
    """Lists places to write, equal ones once, and which are those of which parameter."""
    numbers: dict[bytes, int] = {}
    arrays: list[np.ndarray] = []
    placed = {}
    stored = {inputs[index].name for index in kept}
    for name, (derived, places) in placements.items():
        if name not in stored:
            number = numbers.setdefault(places.tobytes(), len(arrays))
            if number == len(arrays):
                arrays.append(places)
            placed[name] = derived, number, len(places)
    return arrays, placed


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


Progress = Callable[[str], None]


def build(
    example: _example.Example,
    target: _example.NamedTarget,
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
    from jaxeff_export import compiler

    if path is None:
        return _in_temporary_folder(lambda home: build(example, target, home, say, database))
    path = Path(path)
    # Before minutes of compiling; checked once more when the folder is written.
    require_absent(path, files.MANIFEST, files.own_files)
    if example.artifact.rounds_inputs:
        # Otherwise the bundle would refuse its own self-check.
        for pair in example.recorded:
            require_numbers(pair.inputs, example.artifact.inputs[len(example.bound) :])
    tuned = None if database is None else compiler.tuned_schedules(database, target.settings)
    say("importing StableHLO")
    lifted = lift(example, target)
    derived, placements = _derived(lifted, example)
    with tempfile.TemporaryDirectory(prefix="jaxeff-link-") as workspace:
        say(f"compiling for {target.name}")
        if has_runtime(target.settings):
            kernels = compiler.schedule_module(lifted.main, target.settings, tuned)
            calls, tiles = compiler.reads_of(kernels), compiler.tiles_of(kernels)
            works = {work.name: work.facts for work in compiler.work_of(kernels)}
            compiled = _Compiled(Path(workspace) / "library.so", calls, tiles, works)
            executable = compiler.lower_module(kernels, target.settings)
            say("linking")
            _link(executable, compiled.library, target.linker)
            parts = _parts(example, target, lifted, compiled, derived, placements)
            return Bundle(path, write_bundle(parts, path), example.treedef)
        c_library = _c_library(example, target, lifted, derived, tuned, Path(workspace) / "c")
        compiled = _Compiled.of_steps(c_library)
        parts = _parts(example, target, lifted, compiled, derived, placements)
        # Where bundles are C libraries the next thing asked of one is another of them.
        bundle = Bundle(path, write_bundle(parts, path), example.treedef, lifted)
        bundle.take_library(c_library)
        return bundle


class _Compiled(NamedTuple):
    """A compiled library.

    Attributes:
      library: its file.
      calls: kernels in the order they are called, with the operands that they read.
      tiles: by kernel the extents of its result that registers hold at once.
      kernels: per kernel what it has to do; none of a C library's, which are never modelled.
    """

    library: Path
    calls: Sequence[tuple[str, Any]]
    tiles: Mapping[str, tuple[int, ...]]
    kernels: Mapping[str, Mapping[str, int]]

    @classmethod
    def of_steps(cls, library: CLibrary) -> "_Compiled":
        """Reads calls and tiles off a C library."""
        # Its kernels are never modelled, so that nothing is known of their work.
        return cls(
            library.folder / "libmodel.a",
            [(step.kernel, step.operands) for step in library.steps],
            {step.kernel: step.tile for step in library.steps if step.tile},
            {},
        )


def _parts(
    example: _example.Example,
    target: _example.NamedTarget,
    lifted: Any,
    compiled: _Compiled,
    derived: Sequence[np.ndarray],
    placements: Mapping[str, files.ArrayPlaces],
) -> BundleParts:
    """Puts together what a bundle holds."""
    return BundleParts(
        library=compiled.library,
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
        kernels=compiled.kernels,
        calls=lifted.parameters_of(compiled.calls, len(example.bound)),
        tiles=compiled.tiles,
        rounds_inputs=example.artifact.rounds_inputs,
        verdict=example.verdict,
        state=example.state,
        tokenizer=example.tokenizer,
        placements=placements,
    )


def _in_temporary_folder(build_at: Callable[[Path], Bundle]) -> Bundle:
    """Builds a bundle whose folder goes once nobody holds it, or when the process ends."""
    home = Path(tempfile.mkdtemp(prefix="jaxeff-bundle-"))
    try:
        bundle = build_at(home / "bundle")
    except BaseException:
        shutil.rmtree(home, ignore_errors=True)
        raise
    weakref.finalize(bundle, shutil.rmtree, home, ignore_errors=True)
    return bundle


def _derived(
    lifted: Any, example: _example.Example
) -> tuple[Sequence[np.ndarray], Mapping[str, files.ArrayPlaces]]:
    """Computes what depends on the parameters alone, and finds the parameters in it."""
    # Arrays of a bundle that is built again are taken over, so that both hold the same bits.
    if example.derived is not None:
        return example.derived, example.placements
    compute, bound = _example.derivation(lifted), example.bound
    derived = compute(bound)
    # Of more bytes a bundle doesn't keep what was given.
    if not derived or sum(array.nbytes for array in bound) > MOST_UNPACKED:
        return derived, {}
    places = _example.placements(lifted, compute, bound, derived)
    return derived, {example.artifact.inputs[i].name: place for i, place in places.items()}


# Neither debugging information nor pages of padding: a small network's would weigh more than it.
_LEAN = ("-Wl,--strip-debug", "-Wl,-z,noseparate-code")


def _c_library(
    example: _example.Example,
    target: _example.NamedTarget,
    lifted: Any,
    derived: Sequence[np.ndarray],
    tuned: Any,
    path: Path,
) -> CLibrary:
    """Writes the C library of a processor without TVM's runtime."""
    bound = [*example.bound, *derived]
    order = _example.c_order(
        example,
        target,
        lifted,
        [bound[index] for index in lifted.operands],
        name="model",
        rounds_inputs=example.artifact.rounds_inputs,
        tuned=tuned,
        limited=False,  # export_c is told of a device
    )
    return write_library(order, path)


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

        def link(output: str, files: Sequence[str], **options: Any) -> None:
            to_disk()
            create_shared(output, files, **options)

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
