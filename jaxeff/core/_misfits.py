"""Why a function refuses data: which axis, order or dtype of theirs is another than it takes.

JAX says of images with their channels first what a convolution thinks of two numbers. Here the
function is traced again, on shapes alone: with a batch axis, with its channels moved, with
arguments in another order, until it takes one. That one is what the error asks for, and the site is
that of the parameter nearest to where the first trace failed. All of it happens after an error:
data that fit cost nothing.

Sharp edges:
    Data that a function takes by chance, such as square images in the wrong order of axes, fit.
    A site is found where a layer gets its parameters as they are, not where they were combined.
"""

import dis
import re
import traceback
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxeff.core._arguments import describe_value, is_array

Shape = tuple[int, ...]

LONGEST = 500
"""Letters of an error, at most."""


class MisfitError(TypeError, ValueError):
    """Data that a function doesn't take; `__cause__` is what it said itself."""


class _Failure(NamedTuple):
    error: Exception
    place: str
    by_library: bool


class _Change(NamedTuple):
    inputs: tuple[Any, ...]
    fault: str
    way_out: str


def misfit(
    where: str,
    f: Callable[..., Any],
    params: Any,
    inputs: tuple[Any, ...],
    error: Exception,
    targets: Any = None,
) -> MisfitError | None:
    """Explains an error by data that a function doesn't take.

    Args:
        where: What the error calls the data, such as `ptq: batches`.
        f: The function, `f(params, *inputs)`.
        params: The parameters of `f`.
        inputs: What it was to be called with.
        error: What was raised.
        targets: What came as the targets of the inputs; None if there are none.

    Returns:
        The error to raise; None if the function takes the data, or nothing is known.
    """
    params = _numbers(params)
    if not all(map(is_array, jax.tree.leaves((params, inputs)))):
        return None
    params, inputs = _shapes(params), _shapes(inputs)
    failure = _failure(f, params, inputs)
    if failure is None or isinstance(failure.error, jax.errors.JAXTypeError):
        return None
    came = _described(inputs)
    said = f"{where} {came} doesn't fit f{failure.place}"
    for change in _changes(inputs, targets):
        if _failure(f, params, change.inputs) is None:
            wanted = _described(change.inputs)
            wanted = "" if wanted == came else f" f takes {wanted}:"
            return MisfitError(f"{said}: {change.fault}.{wanted} {change.way_out}.")
    if _failure(lambda _, *each: f(*each), params, inputs) is None:
        return MisfitError(
            f"{said}: f takes the data alone, so its parameters are closed over; write it as "
            "f(params, *inputs), and give params."
        )
    error = cause_of(error)
    # A function of a key, or of a state, refuses this call for another reason than the first one.
    another = "positional argument" in str(failure.error) and (
        _without_numbers(error) != _without_numbers(failure.error)
    )
    # Of arrays, what isn't about shapes and dtypes, such as a missing key, is a mistake in f.
    about_data = isinstance(failure.error, TypeError | ValueError) or not all(map(is_array, inputs))
    if failure.by_library or another or not about_data:
        return None
    reason = str(failure.error).strip().partition("\n")[0]
    return MisfitError(f"{said}: {reason}"[:LONGEST])


def cause_of(error: Exception) -> Exception:
    """Returns what a function said itself, not an inner call's words of it."""
    while isinstance(error, MisfitError) and isinstance(error.__cause__, Exception):
        error = error.__cause__
    return error


def is_own(error: Exception) -> bool:
    """Tells whether the library itself raised an error, in its own words."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None or last.tb_frame.f_globals.get("__name__", "").partition(".")[0] not in _OURS:
        return False
    # A call that a function refuses, or one of compiled code, ends in the frame of its caller.
    return last.tb_frame.f_code.co_code[last.tb_lasti] == dis.opmap["RAISE_VARARGS"]


_OURS = ("jaxeff", "jaxeff_export")


def _numbers(params: Any) -> Any:
    """Returns parameters of the kind that a function takes: of a posterior, its means."""
    if hasattr(params, "to_gaussians") and not isinstance(params, type):
        params = params.to_gaussians()

    def is_random(leaf: Any) -> bool:
        return hasattr(leaf, "mean") and hasattr(leaf, "var") and not hasattr(leaf, "sharding")

    means = jax.tree.map(
        lambda leaf: leaf.mean if is_random(leaf) else leaf, params, is_leaf=is_random
    )
    return params if any(map(callable, jax.tree.leaves(means))) else means


def _shapes(tree: Any) -> Any:
    def shape(leaf: Any) -> Any:
        return jax.ShapeDtypeStruct(np.shape(leaf), jnp.result_type(leaf))

    return jax.tree.map(lambda leaf: shape(leaf) if hasattr(leaf, "dtype") else leaf, tree)


def _failure(f: Callable[..., Any], params: Any, inputs: Any) -> _Failure | None:
    """Traces a function on shapes; None if it takes them."""
    place, by_library = "", False

    def call(params: Any, inputs: Any) -> Any:
        nonlocal place, by_library
        try:
            return f(params, *inputs)
        except Exception as error:
            place, by_library = _place(error, params), is_own(error)  # while its frames are there
            raise

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # those of right data were given before
            jax.eval_shape(call, params, inputs)
    except Exception as error:  # whatever a function of somebody else's raises
        return _Failure(error, place, by_library)
    return None


def _place(error: Exception, params: Any) -> str:
    """Names the parameter that was last handed over where a trace failed, as ` at conv1 (...)`."""
    paths = {id(leaf): path for path, leaf in jax.tree_util.tree_leaves_with_path(params)}
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    for frame in reversed(frames):
        if frame.f_globals.get("__name__") == __name__:
            break  # our own, which hold all of them
        if (leaf := _nearest(frame, paths)) is not None:
            path = [_key(key) for key in paths[id(leaf)]]
            path = path[1:] if path[0] == "params" and len(path) > 1 else path
            described = f"{path[-1]} {leaf.dtype}{list(leaf.shape)}"
            return f" at {'/'.join(path[:-1]) or path[-1]} ({described})"
    return ""


def _nearest(frame: types.FrameType, paths: Mapping[int, Any]) -> Any:
    """Returns the parameter that a frame holds, or that of the one layer that it holds."""
    local = list(frame.f_locals.values())
    for value in local:
        if id(value) in paths:
            return value
    held = [list(value.values()) for value in local if isinstance(value, dict)]
    layers = [each for each in held if each and all(id(leaf) in paths for leaf in each)]
    # A kernel says more about sizes than a bias.
    return max(layers[0], key=lambda leaf: len(leaf.shape)) if layers else None


def _key(key: Any) -> str:
    return jax.tree_util.keystr((key,), simple=True)


def _changes(inputs: tuple[Any, ...], targets: Any) -> Iterator[_Change]:
    """Lists what data could have been meant, the likeliest first."""
    if targets is not None and is_array(targets):
        yield _Change(
            (_shapes(targets), *inputs[1:]),
            "inputs and targets (labels) are in each other's place",
            "Give (*inputs, targets)",
        )
    if len(inputs) == 1 and isinstance(inputs[0], tuple | list):
        yield from _unpacked(inputs[0])
    leaves, structure = jax.tree.flatten(inputs)
    axes = [leaf.shape if hasattr(leaf, "shape") else None for leaf in leaves]

    def at(chosen: set[int], change: Callable[[Shape], Shape | None]) -> Any:
        """The inputs with some shapes changed; None if one can't be."""
        changed = list(leaves)
        for i in chosen:
            before = axes[i]
            if before is None or (shape := change(before)) is None:
                return None
            changed[i] = jax.ShapeDtypeStruct(shape, leaves[i].dtype)
        return jax.tree.unflatten(structure, changed)

    sets = [
        set(range(len(leaves))),
        *([{i} for i in range(len(leaves))] if len(leaves) > 1 else []),
    ]
    for change, fault, way_out in _LAYOUTS:
        for chosen in sets:
            if (changed := at(chosen, change)) is not None:
                yield _Change(changed, fault, way_out)
    if len(inputs) == 2:
        yield _Change(inputs[::-1], "the inputs are in each other's place", "Swap them")
    for dtype, name in ((jnp.float32, "float"), (jnp.int32, "int")):
        kept = [leaf for leaf in leaves if hasattr(leaf, "dtype")]
        changed = jax.tree.unflatten(
            structure,
            [jax.ShapeDtypeStruct(x.shape, dtype) if hasattr(x, "dtype") else x for x in leaves],
        )
        if any(leaf.dtype != dtype for leaf in kept):
            yield _Change(changed, "it has another dtype", f"Cast it, x.astype({name})")


def _unpacked(value: Any) -> Iterator[_Change]:
    """Lists what a tuple or list in the place of an array may have been meant as."""
    kind = type(value).__name__
    for entries in (tuple(value), tuple(jax.tree.leaves(value))):
        yield _Change(entries, f"a {kind} came as one argument", "Give its entries one by one")
    shapes = {leaf.shape for leaf in value if hasattr(leaf, "shape")}
    if len(shapes) != 1 or not all(hasattr(leaf, "shape") for leaf in value):
        return
    shape, fault = *shapes, f"a {kind} of {len(value)} arrays came for one array"
    stacked = jax.ShapeDtypeStruct((len(value), *shape), value[0].dtype)
    yield _Change((stacked,), fault, "np.stack makes one")
    if shape:
        joined = jax.ShapeDtypeStruct((len(value) * shape[0], *shape[1:]), value[0].dtype)
        yield _Change((joined,), fault, "np.concatenate makes one")


def _channels_last(shape: Shape) -> Shape | None:
    return (shape[0], *shape[2:], shape[1]) if len(shape) > 2 else None


def _channels_first(shape: Shape) -> Shape | None:
    return (shape[0], shape[-1], *shape[1:-1]) if len(shape) > 2 else None


_LAYOUTS: tuple[tuple[Callable[[Shape], Shape | None], str, str], ...] = (
    (lambda s: (1, *s), "it has no batch axis", "One example is x[None]"),
    (_channels_last, "channels come first, not last", "np.moveaxis(x, 1, -1) moves them"),
    (_channels_first, "channels come last, not first", "np.moveaxis(x, -1, 1) moves them"),
    (
        lambda s: _channels_last((1, *s)),
        "it has no batch axis, and channels come first",
        "np.moveaxis(x, 0, -1)[None] is one example",
    ),
    (
        lambda s: _channels_first((1, *s)),
        "it has no batch axis, and channels come last",
        "np.moveaxis(x, -1, 0)[None] is one example",
    ),
    (lambda s: (*s, 1), "it has no axis of channels", "x[..., None] adds one"),
    (
        lambda s: (s[0], 1, *s[1:]) if s else None,
        "it has no axis of channels",
        "x[:, None] adds one",
    ),
    (lambda s: (1, *s, 1), "it has neither a batch axis nor channels", "x[None, ..., None]"),
    (
        lambda s: s[:-1] if s[-1:] == (1,) else None,
        "its last axis is one too many",
        "x[..., 0] leaves it out",
    ),
    (
        lambda s: (s[0] * s[1], *s[2:]) if len(s) > 1 else None,
        "it is a batch of batches",
        "x.reshape(-1, *x.shape[2:]) is one, or give them one by one",
    ),
    (
        lambda s: (s[0], int(np.prod(s[1:]))) if len(s) > 2 else None,
        "its examples aren't flat",
        "x.reshape(len(x), -1) flattens them",
    ),
    (lambda s: (1, int(np.prod(s))), "it has no batch axis", "x.reshape(1, -1) is one example"),
)  # fmt: skip
"""What shapes may have been, the fault that it is, and the way out."""


def _described(inputs: tuple[Any, ...]) -> str:
    """Describes inputs by dtype and shape, briefly."""
    if len(inputs) == 1 and hasattr(inputs[0], "dtype"):
        return _array(inputs[0])
    leaves = jax.tree.leaves(inputs)
    shown = [_array(leaf) for leaf in leaves[:3]] + ["..."] * (len(leaves) > 3)
    return f"({', '.join(shown)})"


def _array(leaf: Any) -> str:
    return f"{leaf.dtype}{list(leaf.shape)}" if hasattr(leaf, "dtype") else describe_value(leaf)


def _without_numbers(error: Exception) -> tuple[type, str]:
    """What two errors have in common that differ in the size of a batch."""
    return type(error), re.sub(r"[\d\s,]+", "", str(error))
