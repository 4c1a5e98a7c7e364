"""Settings: frozen dataclasses that say what a transform does to a layer, and are pytrees.

The numbers of a setting (a noise level, a range) are leaves, so a setting can be swept with `vmap`,
differentiated and passed through `jit`; its choices (a bit width, an axis, a name) are static.

Sharp edges:
    `jax.tree_util.register_dataclass` calls the constructor whenever JAX rebuilds a pytree, also
    for a gradient, whose numbers may be negative. Settings check their numbers in `__post_init__`,
    so they are registered here with an unflattening that calls no constructor.
    Numbers are checked where they are concrete; a traced number is taken as it is.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

T = TypeVar("T")


def static(default: Any = dataclasses.MISSING) -> Any:
    """A dataclass field that is static metadata of the pytree, not a leaf."""
    return dataclasses.field(default=default, metadata={"static": True})


def register_setting(cls: type[T]) -> type[T]:
    """Registers a frozen dataclass as a pytree: `static` fields are metadata, the rest children.

    Args:
        cls: A frozen dataclass. Static fields must be hashable.

    Returns:
        The same class. Rebuilding it from leaves runs no validation.
    """
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    leaves = tuple(f.name for f in fields if not f.metadata.get("static"))
    metadata = tuple(f.name for f in fields if f.metadata.get("static"))
    keys = tuple(jax.tree_util.GetAttrKey(name) for name in leaves)

    def flatten(x: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        return tuple(getattr(x, n) for n in leaves), tuple(getattr(x, n) for n in metadata)

    def flatten_with_keys(x: Any) -> tuple[Iterable[tuple[Any, Any]], tuple[Any, ...]]:
        children, aux = flatten(x)
        return zip(keys, children, strict=True), aux

    def unflatten(aux: Iterable[Any], children: Iterable[Any]) -> T:
        x = object.__new__(cls)
        for name, value in zip(leaves + metadata, (*children, *aux), strict=True):
            object.__setattr__(x, name, value)
        return x

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    return cls


def is_concrete(value: Any) -> bool:
    """Whether `value` holds numbers that can be looked at now."""
    return isinstance(value, int | float | np.ndarray | np.generic | jax.Array) and not isinstance(
        value, jax.core.Tracer
    )


def check_number(
    name: str, value: Any, low: float = -np.inf, high: float = np.inf, *, finite: bool = True
) -> None:
    """Checks a number or array of a setting where it is concrete.

    Args:
        name: What an error message calls it, such as `Additive.sigma`.
        value: A number, an array, or a traced array, which passes unchecked.
        low: The smallest value allowed.
        high: The largest value allowed.
        finite: Whether infinities are refused.

    Raises:
        TypeError: `value` is neither a real number nor an array of real numbers.
        ValueError: An entry is NaN, infinite where `finite`, or outside `[low, high]`.
    """
    if isinstance(value, jax.core.Tracer):
        return
    if not is_concrete(value) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number or an array, not {value!r}.")
    numbers = np.asarray(value)
    if numbers.dtype.kind not in "iufV":  # V: ml_dtypes such as bfloat16
        raise TypeError(f"{name} must hold real numbers, not dtype {numbers.dtype}.")
    numbers = numbers.astype(np.float64)
    allowed = (numbers >= low) & (numbers <= high) & (np.isfinite(numbers) | (not finite))
    if not allowed.all():
        bad = numbers[~allowed].ravel()[0]
        wanted = f"between {low:g} and {high:g}" if np.isfinite(high) else f"at least {low:g}"
        wanted = "finite" if np.isneginf(low) and np.isposinf(high) else wanted
        raise ValueError(f"{name} must be {wanted}, but is {bad:g}.")


def check_choice(name: str, value: Any, choices: Iterable[Any]) -> None:
    """Checks a static choice of a setting.

    Raises:
        ValueError: `value` isn't one of `choices`.
    """
    options = list(choices)
    if value not in options:
        listed = ", ".join(repr(o) for o in options)
        raise ValueError(f"{name} must be one of {listed}, not {value!r}.")


def lifted(value: Any, shape: tuple[int, ...]) -> jax.Array:
    """An array with leading axes of one, so that it broadcasts without a promotion of ranks."""
    missing = range(len(shape) - jnp.ndim(value)) if jnp.ndim(value) else ()
    return jnp.expand_dims(jnp.asarray(value), tuple(missing))


def check_broadcasts(name: str, value: Any, shape: tuple[int, ...]) -> None:
    """Checks that a number or array of a setting broadcasts to the shape of what it acts on.

    Raises:
        ValueError: It doesn't, or would enlarge it.
    """
    try:
        fits = jnp.broadcast_shapes(np.shape(value), shape) == shape
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(
            f"{name} has shape {np.shape(value)}, which doesn't broadcast against the array of "
            f"shape {shape} that it acts on."
        )


def check_applies(
    settings: Mapping[str, Any],
    layers: Iterable[Any],
    applies: Callable[[Any, Any], bool],
    purpose: str,
) -> None:
    """Checks that every setting finds something to act on in at least one of its layers.

    Args:
        settings: A setting per site, None for those left alone.
        layers: Layers with a site and a kind.
        applies: Whether `applies(layer, setting)` changes the layer.
        purpose: What is missing, for the error message: "has no ... <purpose>".

    Raises:
        ValueError: A setting acts on none of its layers.
    """
    idle: dict[int, tuple[Any, list[str]]] = {}
    busy: set[int] = set()
    for layer in layers:
        setting = settings.get(layer.site)
        if setting is None:
            continue
        if applies(layer, setting):
            busy.add(id(setting))
        idle.setdefault(id(setting), (setting, []))[1].append(f"{layer.site} ({layer.kind})")
    for identity, (setting, sites) in idle.items():
        if identity not in busy:
            listed = ", ".join(sites[:5]) + (", ..." if len(sites) > 5 else "")
            raise ValueError(
                f"{setting!r} was given to {listed}, which has nothing for {purpose} there; choose "
                "other sites or another place."
            )
