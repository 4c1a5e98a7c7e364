"""Settings: frozen dataclasses that say what a transform does to a layer, and are pytrees.

The numbers of a setting (a noise level, a range) are leaves, so a setting can be swept with `vmap`,
differentiated and passed through `jit`; its choices (a bit width, an axis, a name) are static.

What a field may hold is said by its type, and checked by `Setting`, whose subclass it is:

```python
from typing import Annotated

from jaxeff.core import Choice, Count, NonNegative, Setting, register_setting, static

@register_setting
class Thermal(Setting):
    sigma: NonNegative
    repeats: Annotated[int, Count(1, 64)] = static(1)
    order: Annotated[str, Choice("first", "last")] = static("first")
```

Arguments of functions are checked by the same functions: `check_number`, `check_count`,
`check_choice`.
"""

import dataclasses
import functools
import operator
from collections.abc import Iterable
from typing import (
    Annotated,
    Any,
    TypeVar,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxeff.core._arguments import describe_value

T = TypeVar("T")


def static(default: Any = dataclasses.MISSING, *, kw_only: Any = dataclasses.MISSING) -> Any:
    """Declares a dataclass field that is static metadata of the pytree, not a leaf."""
    # False would take a field out of a class all of whose fields are given by name.
    return dataclasses.field(default=default, metadata={"static": True}, kw_only=kw_only)


def static_number(default: Any = dataclasses.MISSING) -> Any:
    """Declares a field that is metadata while a Python number, and a leaf while an array.

    A bit width is one: a plain `4` is known to the compiler, which specialises the program for it;
    an array of widths can be swept with `vmap` or learnt, in one program for all of them.
    """
    return dataclasses.field(default=default, metadata={"static": "number"})


@dataclass_transform(frozen_default=True)
def register_setting(cls: type[T]) -> type[T]:
    """Makes a frozen dataclass that is a pytree: `static` fields are metadata, the rest children.

    What a `static_number` is depends on what it holds.

    Sharp edges:
        `jax.tree_util.register_dataclass` calls the constructor whenever JAX rebuilds a pytree,
        also for a gradient, whose numbers may be negative. Settings check their numbers in
        `__post_init__`, so they are registered here with an unflattening that calls no constructor.
        Numbers are checked where they are concrete; a traced number is taken as it is.

    Args:
        cls: A class, or a frozen dataclass with options of its own. Static fields must be hashable.

    Returns:
        The dataclass. Rebuilding it from leaves runs no validation.
    """
    if "__dataclass_fields__" not in cls.__dict__:  # those of a base don't count
        cls = dataclasses.dataclass(frozen=True)(cls)
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    kinds = {f.name: f.metadata.get("static") for f in fields}

    def leaves(x: Any) -> tuple[str, ...]:
        return tuple(
            name
            for name, kind in kinds.items()
            if not kind or (kind == "number" and not _is_plain(getattr(x, name)))
        )

    def flatten(x: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        # What is metadata depends on the value, so the names are part of it: trees that differ
        # there have different structures, and `jit` compiles each.
        names = leaves(x)
        metadata = tuple((n, getattr(x, n)) for n in kinds if n not in names)
        return tuple(getattr(x, n) for n in names), (names, metadata)

    def flatten_with_keys(x: Any) -> tuple[Iterable[tuple[Any, Any]], tuple[Any, ...]]:
        children, aux = flatten(x)
        keys = (jax.tree_util.GetAttrKey(name) for name in aux[0])
        return tuple(zip(keys, children, strict=True)), aux

    def unflatten(aux: tuple[Any, ...], children: Iterable[Any]) -> T:
        # No constructor: JAX also rebuilds trees of gradients and placeholders, which need not pass
        # the checks.
        x = object.__new__(cls)
        names, metadata = aux
        for name, value in (*zip(names, children, strict=True), *metadata):
            object.__setattr__(x, name, value)
        return x

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    return cls


def _is_plain(value: Any) -> bool:
    """Tells whether a value is known when a program is traced: a Python number, or None."""
    return value is None or isinstance(value, bool | int | float)


def is_concrete(value: Any) -> bool:
    """Tells whether `value` holds numbers that are known now, not traced."""
    return isinstance(value, int | float | np.ndarray | np.generic | jax.Array) and not isinstance(
        value, jax.core.Tracer
    )


# 8 parameters: bounds that a number may have, of which a call gives one or two.
def check_number(
    name: str,
    value: Any,
    low: float = -np.inf,
    high: float = np.inf,
    *,
    above: float = -np.inf,
    below: float = np.inf,
    finite: bool = True,
    integer: bool = False,
) -> None:
    """Checks a number or array of a setting where it is concrete.

    Args:
        name: name in error messages, such as `Additive.sigma`.
        value: A number, an array, or a traced array, which passes unchecked.
        low: The smallest value allowed.
        high: The largest value allowed.
        above: Values must be larger than this.
        below: Values must be smaller than this.
        finite: Whether infinities are refused.
        integer: Whether the dtype must be one of integers.

    Raises:
        TypeError: `value` is neither a real number nor an array of real numbers, or no integer.
        ValueError: An entry is NaN, infinite where `finite`, or outside the bounds.
    """
    if isinstance(value, jax.core.Tracer):
        return
    if not is_concrete(value) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number or an array, not {describe_value(value)}.")
    numbers = np.asarray(value)
    if numbers.dtype.kind not in "iufV":  # V: ml_dtypes such as bfloat16
        raise TypeError(f"{name} must hold real numbers, not dtype {numbers.dtype}.")
    if integer and numbers.dtype.kind not in "iu":
        raise TypeError(f"{name} must be an integer, not {describe_value(value)}.")
    # Exact for every narrower float, and one dtype to compare with the bounds.
    numbers = numbers.astype(np.float64)
    allowed = (numbers >= low) & (numbers <= high) & (np.isfinite(numbers) | (not finite))
    # The infinities that stand for no bound exclude nothing.
    allowed &= ((numbers > above) | np.isneginf(above)) & ((numbers < below) | np.isposinf(below))
    if not allowed.all():
        bad = numbers[~allowed].ravel()[0]
        raise ValueError(f"{name} must be {_bounds(low, high, above, below)}, but is {bad:g}.")


def _bounds(low: float, high: float, above: float, below: float) -> str:
    """Describes the numbers that are allowed."""
    if np.isfinite(low) and np.isfinite(high):
        return f"between {low:g} and {high:g}"
    words = [
        *([f"at least {low:g}"] if np.isfinite(low) else []),
        *(["positive" if above == 0 else f"above {above:g}"] if np.isfinite(above) else []),
        *([f"at most {high:g}"] if np.isfinite(high) else []),
        *([f"below {below:g}"] if np.isfinite(below) else []),
    ]
    return " and ".join(words) or "finite"


def check_count(name: str, value: Any, low: float = 1, high: int | None = None) -> None:
    """Checks a whole number that is known when a program is traced.

    Args:
        name: name in error messages.
        value: The number.
        low: The smallest allowed.
        high: The largest allowed, if any.

    Raises:
        TypeError: It is no integer.
        ValueError: It is outside the bounds.
    """
    try:
        # `index` takes NumPy's integers and refuses floats. A bool has an index too, but as a count
        # it is a mistake.
        number = None if isinstance(value, bool | jax.core.Tracer) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise TypeError(f"{name} must be an integer, not {describe_value(value)}.")
    check_number(name, number, low, np.inf if high is None else high)


def check_choice(name: str, value: Any, choices: Iterable[Any]) -> None:
    """Checks a static choice of a setting.

    Raises:
        ValueError: `value` isn't one of `choices`.
    """
    options = list(choices)
    if value not in options:
        listed = ", ".join(repr(o) for o in options)
        raise ValueError(f"{name} must be one of {listed}, not {describe_value(value)}.")


class Number:
    """Bounds of a field that may be a leaf, checked by `check_number`."""

    def __init__(self, low: float = -np.inf, high: float = np.inf, **bounds: Any):
        self._bounds = {"low": low, "high": high, **bounds}

    def check(self, name: str, value: Any) -> None:
        """Checks a value against the bounds."""
        check_number(name, value, **self._bounds)


class Count:
    """Bounds of a static field that is a whole number, checked by `check_count`."""

    def __init__(self, low: int = 1, high: int | None = None):
        self._bounds = low, high

    def check(self, name: str, value: Any) -> None:
        """Checks a value against the bounds."""
        check_count(name, value, *self._bounds)


class Width:
    """Bounds of a `static_number` that holds one whole number or an array of them."""

    def __init__(self, low: int, high: int):
        self._bounds = low, high

    def check(self, name: str, value: Any) -> None:
        """Checks a value against the bounds; the values of a traced array are unknown."""
        if isinstance(value, np.ndarray | jax.Array):
            check_number(name, value, *self._bounds)
            if is_concrete(value) and np.any(np.asarray(value) % 1):
                raise ValueError(f"{name} must hold whole numbers, not {value}.")
        else:
            check_count(name, value, *self._bounds)


class Choice:
    """Options of a static field."""

    def __init__(self, *choices: Any):
        self._choices = choices

    def check(self, name: str, value: Any) -> None:
        """Checks that a value is one of the options."""
        check_choice(name, value, self._choices)


class Boolean:
    """What a static field of type `bool` is checked by."""

    def check(self, name: str, value: Any) -> None:
        """Checks that a value is True or False: any other has a truth value that nobody meant."""
        if not isinstance(value, bool | np.bool_):
            raise TypeError(f"{name} must be True or False, not {describe_value(value)}.")


NonNegative = Annotated[Float[Array, "..."] | float, Number(0)]
Positive = Annotated[Float[Array, "..."] | float, Number(above=0)]


class Setting:
    """Frozen dataclass whose fields are checked against their types.

    A subclass with more to check than one field at a time extends `__post_init__`.
    """

    def __post_init__(self) -> None:
        """Checks each field that is a `bool`, or has a `Number`, `Count`, `Width` or `Choice`.

        Raises:
            TypeError: A field holds something of another type.
            ValueError: A number is out of bounds, or a choice unknown.
        """
        cls: Any = type(self)
        for field, may_be_none, bounds in _checked_fields(cls):
            value = getattr(self, field)
            if not (value is None and may_be_none):
                bounds.check(f"{cls.__name__}.{field}", value)


@functools.cache
def _checked_fields(cls: type) -> list[tuple[str, bool, Any]]:
    """Lists the fields with bounds, whether they may be None, and the bounds."""
    bounded: list[tuple[str, bool, Any]] = []
    for name, hint in get_type_hints(cls, include_extras=True).items():
        if hint is bool:
            bounded.append((name, False, Boolean()))
        if get_origin(hint) is Annotated:
            kind, *notes = get_args(hint)
            may_be_none = type(None) in get_args(kind)
            bounds = [note for note in notes if isinstance(note, Number | Count | Width | Choice)]
            bounded += [(name, may_be_none, bound) for bound in bounds]
    return bounded


def short_repr(setting: Any) -> str:
    """Describes a setting briefly: what isn't its default; of an array its dtype and shape."""
    if dataclasses.is_dataclass(setting) and not isinstance(setting, type):
        changed = [
            f"{field.name}={short_repr(value)}"
            for field in dataclasses.fields(setting)
            # Identity first: comparing an array with `==` gives an array, not a truth value.
            if (value := getattr(setting, field.name)) is not field.default
            and not (isinstance(value, str | bool | int | float) and value == field.default)
        ]
        return f"{type(setting).__name__}({', '.join(changed)})"
    if isinstance(setting, np.ndarray | jax.Array) and np.ndim(setting):
        return f"{setting.dtype}[{','.join(map(str, setting.shape))}]"
    if isinstance(setting, jax.Array) and not isinstance(setting, jax.core.Tracer):
        return f"{setting.item():.4g}"
    return repr(setting)


def with_leading_axes(value: Any, shape: tuple[int, ...]) -> jax.Array:
    """Adds leading axes of size one, so that an array broadcasts without rank promotion."""
    # Scalars broadcast as they are: JAX exempts rank 0 from its check of rank promotion.
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
