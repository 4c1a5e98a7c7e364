"""Deployment of a function with its trained parameters as a bundle, in one call.

```python
from jaxeff.nn import small_classifier
from jaxeff_export import deploy

f, params, (x, y) = small_classifier(10)
bundle = deploy(f, (params, x))                         # for this machine
assert bundle.check()                                   # replays what JAX recorded
assert bundle.run(x).shape == (10, 10)
```

A saved artifact is compiled without the Python that made it, here with parameters of its own:

```python
import numpy as np

from jaxeff_export import Artifact, deploy_artifact, export

export(f, (params, x)).save("net.zip")
artifact = Artifact.load("net.zip")
arrays = {spec.name: np.ones(spec.shape, np.float32) for spec in artifact.inputs}
bundle = deploy_artifact(artifact, arrays)
```
"""

from __future__ import annotations

import contextlib
import functools
import math
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from jaxeff import core
from jaxeff.contrib import Tokenizer
from jaxeff.program.ir import channels_last, products_ahead
from jaxeff_export.artifact import (
    Artifact,
    SignatureError,
    TensorSpec,
    argument_names,
    batch_of,
    check_array,
    dtype_of,
    export_traced,
    state_places,
    with_batch,
)
from jaxeff_export.boards import BoardError, make_board
from jaxeff_export.bundle._building import Progress, build
from jaxeff_export.bundle._bundle import Bundle
from jaxeff_export.bundle._example import Example, NamedTarget
from jaxeff_export.bundle.files import BundleError, RecordedPair, SelfCheck
from jaxeff_export.schedules import TuningDatabase
from jaxeff_export.targets import ToolchainError, has_runtime, processor_of

_BYTES = {"int4": jnp.int8, "uint4": jnp.uint8}


def with_bytes(
    f: Callable[..., Any], args: Sequence[Any], parameters: int
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Returns a function whose four-bit parameters are bytes, and its arguments.

    The first `parameters` of the arguments are parameters.

    No library function that a kernel could call takes four-bit numbers, and memory has none. So
    parameters of four bits come as int8, and the function makes int4 of them, which the importer
    reads as numbers of eight bits of the same value. Written, bytes of which half is one of two
    values compress to about four bits each.
    """
    leaves, structure = jax.tree.flatten(tuple(args[:parameters]))
    # What is no array is refused later, by its name.
    dtypes_of_f = [getattr(leaf, "dtype", None) for leaf in leaves]
    if not any(str(dtype) in _BYTES for dtype in dtypes_of_f):
        return f, tuple(args)

    def cast(leaves: Sequence[Any], dtypes: Sequence[Any]) -> tuple[Any, ...]:
        # Others stay what they are, NumPy arrays and numbers too.
        restored = [
            jnp.asarray(leaf).astype(dtype) if str(kind) in _BYTES else leaf
            for leaf, dtype, kind in zip(leaves, dtypes, dtypes_of_f, strict=True)
        ]
        bound: tuple[Any, ...] = jax.tree.unflatten(structure, restored)
        return bound

    # Wrapped, so that arguments keep their names.
    @functools.wraps(f)
    def g(*arguments: Any) -> Any:
        return f(
            *cast(jax.tree.leaves(arguments[:parameters]), dtypes_of_f), *arguments[parameters:]
        )

    # What `integer(...).coded` says of its codes is no attribute that wrapping copies.
    if hasattr(f, "code_grids"):
        setattr(g, "code_grids", f.code_grids)  # noqa: B010
    stored = [_BYTES.get(str(dtype), dtype) for dtype in dtypes_of_f]
    return g, (*cast(leaves, stored), *args[parameters:])


class BuildOptions(TypedDict, total=False):
    """How a bundle is built, whatever it is made of; `deploy` has their meaning."""

    parameters: int | None
    database: str | Path | None
    progress: Progress | None
    check: bool


@dataclass(frozen=True, kw_only=True)
class BuildSettings:
    """How a bundle is built, by the names and with the defaults of `deploy`'s arguments."""

    parameters: int | None = None
    database: str | Path | None = None
    progress: Progress | None = None
    check: bool = True


# 12 parameters: what a user chooses of a bundle, and looks up in one place.
@core.validate(
    f=core.function_of_form("f(*args)"),
    parameters=core.static_integer(0),
    database=core.path_like,
    progress=core.function_of_form("progress(line)"),
    any_batch=core.any_of(core.boolean, core.string_sequence),
    verdict=core.instance_of(str),
    state=core.string_sequence,
    tokenizer=core.instance_of(Tokenizer),
    check=core.boolean,
)
def deploy(
    f: Callable[..., Any],
    args: Sequence[Any],
    target: str | Mapping[str, Any] = "host",
    path: str | Path | None = None,
    *,
    parameters: int | None = None,
    any_batch: bool | Collection[str] = False,
    verdict: str = "",
    state: Sequence[str] = (),
    tokenizer: Tokenizer | None = None,
    database: str | Path | None = None,
    progress: Progress | None = None,
    check: bool = True,
) -> Bundle:
    """Compiles ``f(params, *inputs)`` into a bundle.

    export (JAX to StableHLO), import (StableHLO to Relax), compute what depends on the parameters
    alone, compile the rest (Relax to machine code), link, and record what JAX itself computes, so
    that every board can be checked against it.

    Args:
      f: a pure function whose first argument is the parameters, e.g. ``jaxeff.moments(f)``:
        without a method of its own that is the diagonal pass here, with the factors that
        ``calibrate_moments`` measured.
      args: ``(params, *inputs)``. The parameters (a trained posterior) go into the bundle;
        the inputs fix the shapes and dtypes, and their values become the self-check, so give a
        real example.
      target: ``"host"``, ``"cortex-a53"``, ``"cortex-a72"``, ``"cortex-a76"``, a TVM target dict,
        or, for a C library alone, one of `C_TARGETS`, such as ``"cortex-m7"``.
      path: the bundle's folder, written whole or not at all; None for a temporary one that lives
        as long as the returned object.
      parameters: number of leading arguments that are parameters: 0 for a function of data alone,
        2 for parameters and batch statistics. By default 1; of a function of one argument nothing
        tells whether that is parameters or data, and it has to be said.
      any_batch: True if the bundle is to take any number of examples: the first axis of all inputs
        is a batch, the same for all; or the names of the arguments that have one. It costs speed,
        see export/README.md.
      verdict: a text that travels with the bundle and that `inspect` shows, as
        ``jaxeff.moments_check(...).verdict``: how far its variances can be trusted.
      state: names of arguments that a session of the bundle keeps and updates in place, such as a
        cache: ``step(params, token, cache) -> (logits, cache)`` with ``state=("cache",)``. The
        function returns a tuple, whose last elements replace them, in this order and in the same
        trees. What they are in the example is what a session begins with. See `Bundle.session`.
      tokenizer: of a decoder, `contrib.load_decoder(...).tokenizer`: it goes into the bundle,
        so that ``generate`` of the command line needs nothing else.
      database: a folder that `tune` filled: kernels it knows for this target get the schedules
        found there, the others the default ones.
      progress: called with one line per step.
      check: whether the library runs on the example, where it can: here, or as a program in the
        emulator. One that disagrees with JAX comes with a `DisagreementWarning`, one of a
        microcontroller that computes a large batch in each call with a `BatchWarning`.

    Returns:
      The bundle; ``bundle.run(*inputs, board=...)`` calls it.

    Raises:
      MissingExtraError: if TVM is not installed.
      TargetError: if the target is unknown.
      ToolchainError: if no linker for it is installed, or linking fails.
      SignatureError: if an argument holds something else than arrays, there is a single argument
        and no `parameters`, there are fewer arguments than `parameters`, JAX cannot trace the
        function without knowing the batch, the example is an empty batch, its result on the
        example has NaN, which nothing can be checked against, or the example itself has where it
        is rounded to codes; naming what of `state` is no argument, or isn't returned as it was.
      FileExistsError: if `path` holds anything but a bundle's own files.
      TuningError: if `database` is none, damaged, or of another TVM version.
      UnsupportedOpError: if the function uses an operation the importer does not know.
    """
    _require_tuple(args, target)
    names = argument_names(f, len(args))
    f = _deployed(f)
    # All that was asked for is checked before tracing, which may take minutes.
    settings = BuildSettings(parameters=parameters, database=database, progress=progress)
    order = _Order.of(names, target, path, settings)
    leaves = _concrete(args)
    # Before tracing: many models can't be traced for a batch of none, and say so obscurely.
    for name, argument in list(zip(names, args, strict=True))[order.parameters :]:
        _require_examples((name, leaf) for leaf in jax.tree.leaves(argument))
    f, args = with_bytes(f, args, order.parameters)
    # What codes mean is said of the function itself, which wrapping would lose.
    if not hasattr(f, "code_grids"):
        f = channels_last(f)
        # Products of all steps need room, which microcontrollers lack.
        f = products_ahead(f) if has_runtime(order.target.settings) else f
    leaves = jax.tree.leaves(args)
    order.say("exporting to StableHLO")
    traced = export_traced(f, args, any_batch=any_batch, parameters=order.parameters)

    # Compiled, as the exported function is: operation by operation, JAX may round differently.
    def reference(example: Sequence[Any]) -> Sequence[Any]:
        return traced.call(*example)

    more = {"verdict": verdict, "state": tuple(state), "tokenizer": tokenizer}
    bundle = None

    def finished() -> tuple[str, Bundle | None]:
        if bundle is None:
            return "deploy stopped, and nothing was written: the same call begins again", None
        return f"deploy stopped before the check of {bundle.folder}", bundle

    with core.keeps_finished(finished):
        bundle = order.built(traced.artifact, leaves, reference, traced.treedef, **more)
        if check:
            _check_here(bundle, order.say)
    return bundle


def _deployed(f: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the pass that one deploys of `moments`; any other function as it is."""
    plain = getattr(f, "__wrapped__", f) if isinstance(f, jax.stages.Wrapped) else f
    deployed: Any = getattr(plain, "deployed", None)
    return deployed if getattr(deployed, "in_place_of", None) is plain else f


class DisagreementWarning(UserWarning):
    """A library doesn't compute what JAX computes from the example."""


def _check_here(bundle: Bundle, say: Progress) -> None:
    """Runs a new library on its example, and warns if it disagrees with JAX.

    A board that is a system in the emulator takes longer to start than most libraries to build:
    libraries for it are checked when they are asked to be.
    """
    manifest = bundle.manifest
    runtime = has_runtime(manifest.target)
    if runtime and make_board("local").machine != manifest.machine:
        say(f"not checked here, for it is for {manifest.machine}: bundle.check(board)")
        return
    say("comparing with JAX")
    with contextlib.ExitStack() as stack:
        try:
            runner = stack.enter_context(bundle.on("local" if runtime else "emulated"))
        except (BoardError, BundleError, ToolchainError) as error:
            say(f"not checked here: {error}")
            return
        try:
            outcome: SelfCheck | BoardError = runner.check()
        except BoardError as error:
            outcome = error
    if isinstance(outcome, BoardError) or not outcome:
        warnings.warn(
            f"{outcome}; before the library is used, compare its decisions with JAX's over data: "
            "bundle.check(board, data=(x, labels))",
            DisagreementWarning,
            stacklevel=3,
        )


@core.validate(
    artifact=core.instance_of(Artifact),
    arrays=core.all_of(core.string_mapping, core.parameter_tree),
    parameters=core.static_integer(0),
    database=core.path_like,
    progress=core.function_of_form("progress(line)"),
    check=core.boolean,
)
@core.forwards(BuildSettings, BuildOptions)
def deploy_artifact(
    artifact: Artifact,
    arrays: Mapping[str, np.ndarray],
    target: str | Mapping[str, Any] = "host",
    path: str | Path | None = None,
    **options: Unpack[BuildOptions],
) -> Bundle:
    """Compiles a saved artifact into a bundle; its first argument is the parameters.

    Args:
      artifact: what `export` made.
      arrays: the parameters and an example of the inputs, one array per name in
        ``artifact.inputs``.
      target: same as for `deploy`.
      path: same as for `deploy`.
      **options: ``parameters``, ``database``, ``progress`` and ``check``, as for `deploy`.

    Returns:
      The bundle.

    Raises:
      MissingExtraError: if TVM is not installed.
      SignatureError: naming an array that is missing, of another shape or dtype, or an empty batch;
        about `parameters`, as for `deploy`.
      TargetError: if the target is unknown.
      ToolchainError: if no linker for it is installed, or linking fails.
      FileExistsError: if `path` holds anything but a bundle's own files.
      TuningError: if `database` is none, damaged, or of another TVM version.
      UnsupportedOpError: if the artifact uses an operation the importer does not know.
    """
    settings = BuildSettings(**options)
    order = _Order.of(artifact.arguments, target, path, settings)
    if missing := [spec.name for spec in artifact.inputs if spec.name not in arrays]:
        raise SignatureError(
            f"{len(missing)} of the artifact's {len(artifact.inputs)} arrays are missing, "
            f"first {missing[0]}"
        )
    values = [check_array(np.asarray(arrays[spec.name]), spec) for spec in artifact.inputs]
    bundle = order.built(artifact, values, lambda leaves: artifact.call(*leaves))
    if settings.check:
        _check_here(bundle, order.say)
    return bundle


@dataclass(frozen=True)
class _Order:
    """Settings of a bundle, whatever its artifact comes from; checked before any work.

    Attributes:
      parameters: number of leading arguments that are parameters.
      target: what to compile for.
      path: the bundle's folder; None for a temporary one.
      database: database whose schedules are taken.
      say: called with one line per step.
    """

    parameters: int
    target: NamedTarget
    path: str | Path | None
    database: TuningDatabase | None
    say: Progress

    @classmethod
    def of(
        cls,
        arguments: Sequence[str],
        target: str | Mapping[str, Any],
        path: str | Path | None,
        settings: BuildSettings,
    ) -> _Order:
        """Resolves what `deploy` was asked for."""
        count = _parameters(arguments, settings.parameters)
        place = NamedTarget.of(target)
        records = None if settings.database is None else TuningDatabase(settings.database)
        return cls(count, place, path, records, settings.progress or _silence)

    def built(
        self,
        artifact: Artifact,
        leaves: Sequence[Any],
        reference: Callable[[Sequence[Any]], Sequence[Any]],
        treedef: Any = None,
        **more: Any,
    ) -> Bundle:
        """Records what JAX computes, and builds the bundle.

        `reference` is what JAX computes from such leaves, flattened; `treedef` the exact structure
        of results, where it is known; `more` the rest of an `Example`.
        """
        specs = artifact.inputs
        # Before the reference is computed, which takes long.
        names = artifact.arguments[self.parameters :]
        after = artifact.leaf_count(self.parameters)
        state = more.get("state", ())
        state_places(state, names, specs[after:], artifact.outputs, artifact.structure)
        if not state:  # whose arrays have axes of their own
            _warn_of_batch(self.target, specs[after:], artifact.outputs)
        self.say("computing the reference with JAX")
        bound = artifact.leaf_count(self.parameters)
        data = zip(specs[bound:], leaves[bound:], strict=True)
        _require_examples((spec.name, leaf) for spec, leaf in data)
        recorded, values = [], []
        for batch in _recorded_batches(leaves, specs):
            batched = with_batch(leaves, specs, batch)
            outputs = _reference(artifact, reference(batched))
            values = [
                # JAX converts what it is given (float64 to float32); what is recorded is what the
                # library takes.
                np.asarray(leaf).astype(dtype_of(spec.dtype), copy=False)
                for leaf, spec in zip(batched, specs, strict=True)
            ]
            recorded.append(RecordedPair(values[bound:], outputs, batch))
        bounded = values[:bound]
        example = Example(artifact, self.parameters, bounded, recorded, treedef, **more)
        return build(example, self.target, self.path, self.say, self.database)


def _recorded_batches(leaves: Sequence[Any], specs: Sequence[TensorSpec]) -> list[int | None]:
    """Chooses the batches that the self-check records.

    They are the example's, the smallest, and an odd larger one.
    """
    example_batch = batch_of([np.asarray(leaf) for leaf in leaves], specs)
    # Odd and larger: no multiple of a vector's width or of the example, so that the ends of loops
    # run too.
    return (
        [None]
        if example_batch is None
        else list(dict.fromkeys((example_batch, 1, 2 * example_batch + 1)))
    )


def _require_examples(data: Iterable[tuple[str, Any]]) -> None:
    """Refuses named arrays without an example, for which the self-check would be empty."""
    for name, leaf in data:
        if np.shape(leaf)[:1] == (0,):
            raise SignatureError(
                f"args: {name} has shape {np.shape(leaf)}, an empty batch, which the "
                "self-check could say nothing about; give at least one example"
            )


def _parameters(arguments: Sequence[str], count: int | None) -> int:
    """Counts the first arguments that are parameters, or refuses to guess."""
    if count is None:
        if len(arguments) == 1:
            raise SignatureError(
                f"{arguments[0]} is the only argument, and nothing tells whether it is parameters, "
                "which a bundle binds, or data, which it takes in each call; give parameters=1 or "
                "parameters=0"
            )
        return 1
    if not 0 <= count <= len(arguments):
        raise SignatureError(
            f"parameters is {count}, but of {len(arguments)} arguments: {', '.join(arguments)}"
        )
    return count


def _require_tuple(args: Any, target: Any) -> None:
    """Refuses arguments that are given one by one, as the function itself takes them."""
    among = next((kind for kind in (jax.Array, np.ndarray) if isinstance(target, kind)), None)
    if isinstance(args, tuple | list) and among is None:
        if not args:
            raise SignatureError("args is empty; give (params, *inputs)")
        return
    came = f"args is {_described(args)}"
    if among is not None:
        came += f", and {_described(target)} is where the target belongs"
    raise SignatureError(
        f"deploy takes a function's arguments as one tuple, deploy(f, (params, x), target); {came}"
    )


def _described(value: Any) -> str:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"an array {value.dtype}{list(value.shape)}"
    return f"a {type(value).__name__}"


class BatchWarning(UserWarning):
    """A microcontroller is to compute a whole batch in each call."""


_MANY_BYTES = 1 << 15
"""Of arrays that have a batch, an eighth of what such boards have: fewer hurt nobody."""


def _warn_of_batch(
    target: NamedTarget, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> None:
    """Warns where a batch such as that of calibration is deployed for a microcontroller."""
    specs = [*inputs, *outputs]
    if processor_of(target.settings) is None or not inputs or any(s.varies for s in specs):
        return
    batch = {spec.shape[0] if spec.shape else 1 for spec in specs}
    sizes = [math.prod(map(int, s.shape)) * dtype_of(s.dtype).itemsize for s in specs if s.shape]
    if len(batch) > 1 or batch == {1} or sum(sizes) < _MANY_BYTES:
        return
    (count,), name = batch, inputs[0].name
    warnings.warn(
        f"{name} has shape {inputs[0].shape}: if that is a batch of {count} examples, "
        f"{target.name} computes all of them in each call, with {sum(sizes):,} bytes of arrays "
        "alone; give one, "
        f"{name}[:1]",
        BatchWarning,
        stacklevel=5,
    )


def _silence(line: str) -> None:
    """Shows no progress."""


def _concrete(args: Sequence[Any]) -> list[Any]:
    leaves = jax.tree.leaves(tuple(args))
    if any(isinstance(leaf, jax.ShapeDtypeStruct | jax.core.Tracer) for leaf in leaves):
        raise SignatureError(
            "deploy needs example arguments with values, for the parameters it binds and the "
            "self-check it records; export takes shapes alone"
        )
    return leaves


def _reference(artifact: Artifact, results: Sequence[Any]) -> list[np.ndarray]:
    """Converts what JAX computes from the example, if it can be compared with."""
    outputs = [np.asarray(leaf) for leaf in results]
    for spec, output in zip(artifact.outputs, outputs, strict=True):
        # complex128 holds every dtype that results may have, those of ml_dtypes too.
        if np.isnan(output.astype(np.complex128)).any():
            raise SignatureError(
                f"JAX computes NaN in {spec.name} from the example, and nothing can be checked "
                "against that; give example inputs the function is defined for"
            )
    return outputs
