"""Checks of one argument each, for `takes`: of what it is, not of what arrays hold.

A check is a function of the argument's name in error messages and of its value. It raises
`TypeError` or `ValueError`, with that name first.
"""

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxeff.core._arguments import check_function, check_key, check_params, describe_value
from jaxeff.core._settings import check_choice, check_count, check_number

Check = Callable[[str, Any], None]


def single_key(where: str, value: Any) -> None:
    """Checks for one random key, no array of them."""
    check_key(where, value)
    shape = np.shape(value)
    # A legacy key's words are its last axis; a typed key's are not in its shape.
    if shape if jnp.issubdtype(value.dtype, jax.dtypes.prng_key) else shape[:-1]:
        raise ValueError(
            f"{where} must be one random key, not an array of them of shape {list(shape)}: give "
            "one, or call it under jax.vmap."
        )


def pure_function(where: str, value: Any) -> None:
    """Checks for a pure function `f(params, *inputs)`."""
    check_function(where, value)


def function_of_form(form: str) -> Check:
    """Makes a check for a function that is called in another way."""
    return lambda where, value: check_function(where, value, form)


def static_integer(low: float = 1, high: int | None = None) -> Check:
    """Makes a check for a whole number that is known when a program is traced.

    A bound of `-inf` excludes none: an axis may be counted from the end.
    """
    return lambda where, value: check_count(where, value, low, high)


def number(low: float = -np.inf, high: float = np.inf, **bounds: Any) -> Check:
    """Makes a check for a real number or an array of them, finite unless `finite=False`."""
    return lambda where, value: check_number(where, value, low, high, **bounds)


finite = number()

positive = number(above=0)

non_negative = number(0)

probability = number(0, 1)


def one_of(*options: Any) -> Check:
    """Makes a check for one of a few values."""
    return lambda where, value: check_choice(where, value, options)


def any_of(*checks: Check) -> Check:
    """Makes a check that passes if one of several does; the error is that of the last."""

    def check(where: str, value: Any) -> None:
        for each in checks[:-1]:
            try:
                return each(where, value)
            except (TypeError, ValueError):
                continue
        return checks[-1](where, value)

    return check


def all_of(*checks: Check) -> Check:
    """Makes a check that passes if all of several do."""

    def check(where: str, value: Any) -> None:
        for one in checks:
            one(where, value)

    return check


def boolean(where: str, value: Any) -> None:
    """Checks for True or False."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{where} must be True or False, not {describe_value(value)}.")


def string(where: str, value: Any) -> None:
    """Checks for a string that isn't empty."""
    if not isinstance(value, str) or not value:
        raise TypeError(f"{where} must be a string, not {describe_value(value)}.")


def path_like(where: str, value: Any) -> None:
    """Checks for a path of a file or folder."""
    if not isinstance(value, str | os.PathLike):
        raise TypeError(f"{where} must be a path, not {describe_value(value)}.")


def string_sequence(where: str, value: Any) -> None:
    """Checks for a sequence of names, such as patterns of sites."""
    # A lone string is a sequence of one-letter names: almost always a forgotten bracket.
    alone = isinstance(value, str | Mapping) or not hasattr(value, "__iter__")
    if alone or not all(isinstance(name, str) for name in value):
        raise TypeError(
            f"{where} must be a sequence of strings such as ['fc1'], not {describe_value(value)}."
        )


def static_integers(low: int = 0) -> Check:
    """Makes a check for a sequence of whole numbers, such as a shape."""

    def check(where: str, value: Any) -> None:
        if isinstance(value, str) or not isinstance(value, Sequence | np.ndarray):
            raise TypeError(
                f"{where} must be a sequence of whole numbers, not {describe_value(value)}."
            )
        for i, entry in enumerate(value):
            check_count(f"{where}[{i}]", entry, low)

    return check


def string_mapping(where: str, value: Any) -> None:
    """Checks for a mapping whose keys are strings."""
    if not isinstance(value, Mapping):
        raise TypeError(f"{where} must be a mapping by name, not {describe_value(value)}.")
    for name in value:
        if not isinstance(name, str):
            raise TypeError(f"{where} must be a mapping by name, but {name!r} is no string.")


def spec_of(*classes: type) -> Check:
    """Makes a check for a spec: settings of some classes, or None, by pattern; no class itself."""

    def check(where: str, value: Any) -> None:
        string_mapping(where, value)
        for pattern, setting in value.items():
            if isinstance(setting, type):
                raise TypeError(
                    f"{where} has the class {setting.__name__} for {pattern!r}: write "
                    f"{setting.__name__}(...)."
                )
            if setting is not None and classes:
                instance_of(*classes)(f"{where} of {pattern!r}", setting)

    return check


def sequence_of(check: Check) -> Check:
    """Makes a check for a list or tuple whose entries pass a check."""

    def check_all(where: str, value: Any) -> None:
        instance_of(list, tuple)(where, value)
        for i, one in enumerate(value):
            check(f"{where}[{i}]", one)

    return check_all


def instance_of(*classes: type) -> Check:
    """Makes a check for an instance of some classes."""
    named = " or ".join(cls.__name__ for cls in classes)

    def check(where: str, value: Any) -> None:
        if not isinstance(value, classes):
            is_class = isinstance(value, type) and issubclass(value, classes)
            hint = f": write {value.__name__}(...)" if is_class else ""
            raise TypeError(f"{where} must be a {named}, not {describe_value(value)}{hint}.")

    return check


def optax_optimizer(where: str, value: Any) -> None:
    """Checks for an Optax gradient transformation."""
    if not all(callable(getattr(value, name, None)) for name in ("init", "update")):
        uncalled = f": call it, {value.__name__}(...)" if inspect.isfunction(value) else ""
        raise TypeError(
            f"{where} must be an optimizer such as optax.adam(1e-3), "
            f"not {describe_value(value)}{uncalled}."
        )


def parameter_tree(where: str, value: Any) -> None:
    """Checks for a pytree of parameters."""
    if value is None:
        raise TypeError(f"{where} must be a pytree of arrays, not None.")
    check_params(where, value)


def posterior_like(where: str, value: Any) -> None:
    """Checks for a posterior of any kind, or a pytree of Gaussians."""
    if not hasattr(value, "to_gaussians") or isinstance(value, type):
        parameter_tree(where, value)
