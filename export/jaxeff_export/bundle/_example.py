"""Ingredients of a bundle: an exported function, values for its inputs, a target.

A C library is ordered from the same (`c_order`), without the bundle that it is of: the same
kernels, called from C. `kernel_calls` says which layer each of them computes.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jaxeff.contrib import Tokenizer
from jaxeff_export.artifact import Artifact, state_places
from jaxeff_export.boards import run_on_threads
from jaxeff_export.bundle.files import ArrayPlaces, BundleError, Manifest, RecordedPair, tolerance
from jaxeff_export.clib import CLibrary, CLibraryError, LibraryParts, bytes_of, write_library
from jaxeff_export.clib.codegen import identifier
from jaxeff_export.schedules import TuningDatabase
from jaxeff_export.targets import (
    find_linker,
    has_runtime,
    name_of,
    require_extra,
    resolve_target,
)

if TYPE_CHECKING:
    from jaxeff_export.compiler.passes import LiftedModule

MOST_UNPACKED = 1 << 24
"""Bytes of parameters up to which a bundle keeps them as they were given beside packed ones."""


@dataclass(frozen=True)
class NamedTarget:
    """Target of a compilation, with its linker.

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
        """Resolves a target given by name or as a dict.

        Raises:
          MissingExtraError: if TVM is not installed.
          TargetError: if it is unknown.
          ToolchainError: if no linker for it is installed.
        """
        require_extra("tvm", "deploying")
        resolved = resolve_target(target)
        name = target if isinstance(target, str) else name_of(resolved)
        return cls(name, resolved, find_linker(resolved))

    @classmethod
    def of_any(cls) -> NamedTarget:
        """Returns the target of kernels without instructions of one processor, for source."""
        # An M0+ has neither vectors nor products of bytes; what compiles and links them is the
        # user's.
        return cls("any", resolve_target("cortex-m0plus"), "")

    @classmethod
    def of_manifest(cls, manifest: Manifest) -> NamedTarget:
        """Returns the target that a bundle was compiled for.

        Raises:
          ToolchainError: if no linker for it is installed.
        """
        return cls(manifest.target_name, manifest.target, find_linker(manifest.target))


@dataclass(frozen=True)
class Example:
    """An artifact with values for its inputs.

    Attributes:
      artifact: the exported function.
      parameters: number of leading arguments of the artifact that are parameters.
      bound: the values of their leaves; zeros for those that a bundle had no use for.
      recorded: pairs of values of the other inputs and what JAX computed from them.
      treedef: the exact structure of results, if this process knows it.
      derived: what was computed from the leaves, if it was.
      verdict: what is known of the results beside their values.
      state: names of the arguments that a bundle keeps and updates.
      tokenizer: what makes tokens of texts, if they are a decoder's.
      placements: by name of a parameter, which derived array has its numbers, if that is known.
    """

    artifact: Artifact
    parameters: int
    bound: Sequence[np.ndarray]
    recorded: Sequence[RecordedPair]
    treedef: Any = None
    derived: Sequence[np.ndarray] | None = None
    verdict: str = ""
    state: tuple[str, ...] = ()
    tokenizer: Tokenizer | None = None
    placements: Mapping[str, ArrayPlaces] = field(default_factory=dict)

    @property
    def places(self) -> list[tuple[int, int]]:
        """Pairs the arrays of state: indices of those among the data and among the results."""
        artifact, bound = self.artifact, len(self.bound)
        data = artifact.arguments[self.parameters :]
        return state_places(
            self.state, data, artifact.inputs[bound:], artifact.outputs, artifact.structure
        )


def lift(example: Example, target: NamedTarget) -> LiftedModule:
    """Imports the function, and separates what depends on its parameters alone.

    Raises:
      UnsupportedOpError: if the artifact uses an operation the importer does not know.
    """
    # Start-up time: each of these loads TVM.
    from jaxeff_export.compiler import bind_parameters, compilation_target
    from jaxeff_export.compiler.passes import with_state
    from jaxeff_export.importer import import_stablehlo
    from jaxeff_export.operators import operators_for

    composites = operators_for(target.settings, example.artifact.any_batch)
    bound = len(example.bound)
    # Bodies of loops and branches are scheduled while they are read. C is compiled for processors
    # that TVM's features don't describe.
    known = has_runtime(target.settings)
    with compilation_target(target.settings) if known else contextlib.nullcontext():
        module = import_stablehlo(
            example.artifact.stablehlo, composites=composites, parameters=bound
        )
    data = len(example.artifact.inputs) - bound
    # From the last argument: what is bound before them changes in number.
    module = with_state(module, [(old - data, new) for old, new in example.places])
    # Only the first inputs are bound; what is computed of them alone is done once.
    return bind_parameters(module, bound, target.settings)


Derivation = Callable[[Sequence[np.ndarray]], list[np.ndarray]]


def derivation(lifted: LiftedModule) -> Derivation:
    """Compiles what depends on the parameters alone, for this machine whatever the target."""
    import tvm
    from joblib import cpu_count

    # Start-up time: the compiler loads TVM.
    from jaxeff_export.compiler import compile_module

    if lifted.derive is None:
        return lambda parameters: []
    # A deep network derives arrays of every layer: machine code of that many calls, which are
    # made once, takes longer than what they compute.
    machine = tvm.relax.VirtualMachine(compile_module(lifted.derive, once=True), tvm.cpu())

    def compute(parameters: Sequence[np.ndarray]) -> list[np.ndarray]:
        tensors = [tvm.runtime.tensor(value) for value in parameters]
        # Two threads of one physical core would share its vector units.
        cores = cpu_count(only_physical_cores=True)
        return [array.numpy() for array in run_on_threads(cores, lambda: machine["main"](*tensors))]

    return compute


def placements(
    lifted: LiftedModule,
    compute: Derivation,
    parameters: Sequence[np.ndarray],
    derived: Sequence[np.ndarray],
) -> dict[int, ArrayPlaces]:
    """Finds the parameters whose numbers are in a derived array, each at a place of its own.

    Computed of numbers that count, in as many digits as they take, such an array says where the
    layout has put each; then the parameter's own numbers must lie there, bit for bit.

    Args:
      lifted: what the arrays are derived by.
      compute: the same, compiled.
      parameters: all of them.
      derived: what was computed from them.

    Returns:
      By index of the parameter the array and the places in it.
    """
    count = len(parameters)
    calls = [(str(k - count), [i]) for i, k in enumerate(lifted.operands) if k >= count]
    sources = [(int(j), of[0]) for j, of in lifted.parameters_of(calls, count) if len(of) == 1]
    alike = [(j, i) for j, i in sources if derived[j].dtype == parameters[i].dtype]
    alike = [(j, i) for j, i in alike if parameters[i].dtype.kind in "iuf"]
    bases = {i: min(_base(parameters[i].dtype), parameters[i].size + 1) for _, i in alike}
    by_parameter: dict[int, ArrayPlaces] = {}
    places = {j: np.zeros(derived[j].size, np.int64) for j, _ in alike}
    power, left = dict.fromkeys(bases, 1), {i: parameters[i].size for i in bases}
    while any(left.values()):
        digits = [
            _counted(p, power[i], bases[i]) if left.get(i) else p for i, p in enumerate(parameters)
        ]
        laid = compute(digits)
        for j, i in alike:
            if left[i]:
                digit = _uncounted(laid[j].reshape(-1))
                places[j] += np.where(digit < 1, -(1 << 40), (digit - 1) * power[i])
        for i in bases:
            power[i], left[i] = power[i] * bases[i], left[i] // bases[i]
    for j, i in alike:
        size = parameters[i].size
        filled = np.flatnonzero((places[j] >= 0) & (places[j] < size))
        at = np.full(size, -1)
        at[places[j][filled]] = filled
        placement = ArrayPlaces(j, at)
        if (at >= 0).all() and _same_bits(derived[j].reshape(-1)[at], parameters[i]):
            by_parameter.setdefault(i, placement)
    return by_parameter


def _base(dtype: np.dtype) -> int:
    """Counts the digits that a dtype has exactly, beside the zero that padding is."""
    if dtype.kind == "f":
        return 1 << np.finfo(dtype).nmant
    return min((1 << 8 * dtype.itemsize) - 1, 1 << 31)


def _counted(like: np.ndarray, power: int, base: int) -> np.ndarray:
    digits = np.arange(like.size) // power % base + 1
    if like.dtype.kind != "f":
        digits = digits.astype(f"u{like.dtype.itemsize}").view(like.dtype)
    return digits.astype(like.dtype).reshape(like.shape)


def _uncounted(digits: np.ndarray) -> np.ndarray:
    if digits.dtype.kind != "f":
        return digits.view(f"u{digits.dtype.itemsize}").astype(np.int64)
    return np.nan_to_num(digits, nan=0, posinf=0, neginf=0).astype(np.int64)


def _same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    return one.tobytes() == other.tobytes()


def c_order(
    example: Example,
    target: NamedTarget,
    lifted: LiftedModule,
    operands: Sequence[np.ndarray],
    *,
    name: str,
    **more: Any,
) -> LibraryParts:
    """Describes the C library of an example, for `write_library`.

    `operands` is what the module of `lifted` takes first; `more` is as for
    `jaxeff_export.clib.LibraryParts`.
    """
    artifact, (pair, *others) = example.artifact, example.recorded
    if others or pair.batch is not None:
        raise CLibraryError(
            "the function takes any batch, and a C library plans its memory in advance; deploy for "
            "a fixed batch, without any_batch"
        )
    return LibraryParts(
        name=name,
        target_name=target.name,
        target=target.settings,
        module=lifted.main,
        operands=operands,
        inputs=artifact.inputs[len(example.bound) :],
        outputs=artifact.outputs,
        arguments=pair.inputs,
        expected=pair.outputs,
        tolerances=[tolerance(array.dtype) for array in pair.outputs],
        state=example.places,
        **more,
    )


@dataclass(frozen=True, kw_only=True)
class LibraryChoices:
    """What a user chooses of a C library, as `Bundle.export_c` says."""

    name: str | None
    embed: bool
    flash: int | str | None
    ram: int | str | None
    database: str | Path | None
    threads: int
    style: str
    source: bool


def export_c(
    example: Example,
    manifest: Manifest,
    lifted: LiftedModule,
    operands: Sequence[np.ndarray],
    path: str | Path,
    chosen: LibraryChoices,
) -> CLibrary:
    """Writes a bundle's function as a C library.

    `lifted` is the function as `lift` reads it for the bundle's target, or of a library in source
    for any processor, and `operands` the bound arrays that it takes first.
    """
    # Start-up time: the compiler loads TVM.
    from jaxeff_export.compiler import tuned_schedules

    # The bundle's own target, so that both have the same kernels.
    target = NamedTarget.of_manifest(manifest)
    tuned = None
    if chosen.database is not None:
        tuned = tuned_schedules(TuningDatabase(chosen.database), target.settings)
    folder, flash, ram = Path(path), chosen.flash, chosen.ram
    order = c_order(
        example,
        target,
        lifted,
        operands,
        # A folder's name needn't be one in C; a name that is given is taken as it is, or refused.
        name=identifier(folder.absolute().name) if chosen.name is None else chosen.name,
        rounds_inputs=manifest.rounds_inputs,
        tuned=tuned,
        embed=chosen.embed,
        flash=None if flash is None else bytes_of(flash),
        ram=None if ram is None else bytes_of(ram),
        threads=chosen.threads,
        style=chosen.style,
        source=chosen.source,
        kernel_target=NamedTarget.of_any().settings if chosen.source else None,
        model=manifest.model,
    )
    return write_library(order, folder)


_BETWEEN = re.compile(r"'\]\['")
_REST = re.compile(r"\['rest'\]\['(\d+)'\]$")
_PART = re.compile(r"\['?([^\]']+)'?\]|\.(\w+)")


class KernelOfLayer(NamedTuple):
    """A call of a kernel.

    Attributes:
        kernel: The name of the kernel in the library.
        layers: The layers whose weights it reads, by their numbers among the given ones.
    """

    kernel: str
    layers: tuple[int, ...]


def kernel_calls(
    manifest: Manifest, artifact: Artifact, layers: Sequence[str], leaves: Sequence[str] = ()
) -> tuple[KernelOfLayer, ...]:
    """Lists the kernels that a deployed function calls, in order, with their layers.

    A kernel belongs to the layer whose weights it reads, whatever the compiler fused into it or
    laid out anew; one that reads no weights (a pooling, a conversion) to the layer before it.

    Args:
        manifest: The bundle's.
        artifact: What the bundle was made from.
        layers: Sites, as the paths of their parameters begin.
        leaves: Paths of the model's parameters, if it was converted to codes: what stays in float
            is numbered there.

    Raises:
        BundleError: if an older version made the bundle, which didn't write its calls.
    """
    if not manifest.calls:
        raise BundleError("an older version made the bundle, without its calls; deploy it again")
    owners = [_owner(_named(spec.name, leaves), layers) for spec in artifact.inputs]
    last: tuple[int, ...] = (0,)
    calls: list[KernelOfLayer] = []
    for kernel, reads in manifest.calls:
        read = [owner for owner in map(owners.__getitem__, reads) if owner is not None]
        last = tuple(sorted(set(read))) or last
        calls.append(KernelOfLayer(kernel, last))
    return tuple(calls)


def _named(name: str, leaves: Sequence[str]) -> str:
    """Finds the path of a parameter that was left in float."""
    rest = _REST.search(name)
    return leaves[int(rest[1])] if rest and leaves else name


def _owner(name: str, layers: Sequence[str]) -> int | None:
    """Finds the layer that an array's path names; of several the longest name."""
    path = "/" + _BETWEEN.sub("/", name).replace("['", "/")
    # Whole path components: `conv1` must not claim the weights of `conv10`.
    fitting = [i for i, layer in enumerate(layers) if f"/{layer}/" in path]
    return max(fitting, key=lambda i: len(layers[i]), default=None)


def layers_of(names: Sequence[str]) -> tuple[str, ...]:
    """Lists the layers that parameters are of, by the parameters' paths in their order."""
    layers = []
    for name in names:
        parts = ["".join(part) for part in _PART.findall(name)] or [name]
        # Arrays of an integer network are named by layer and kind, in a dictionary of their own.
        parts = "/".join(parts[1:] if parts[:1] == ["arrays"] else parts).split("/")
        layers.append("/".join(parts[:-1]) or parts[0])
    return tuple(dict.fromkeys(layers))
