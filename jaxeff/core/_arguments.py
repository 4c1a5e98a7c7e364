"""Checks of the arguments of public functions, with one clear error each.

Without them, a wrong argument fails deep inside, with an error that names nothing the caller
wrote. Checks look at types and shapes, and at values only where they are concrete, so that
everything still traces.
"""

import sys
from importlib import import_module, metadata
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx


def check_key(where: str, key: Any) -> None:
    """Checks a random key; an array of keys is one as well.

    Args:
        where: name in error messages, such as `fit: key`.
        key: A typed key, or old-style numbers of dtype uint32.

    Raises:
        TypeError: It is none.
    """
    dtype = getattr(key, "dtype", None)
    typed = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)
    # Old-style keys are two words for Threefry, four for RBG.
    if not typed and (dtype != jnp.uint32 or np.shape(key)[-1:] not in {(2,), (4,)}):
        raise TypeError(
            f"{where} must be a random key such as jax.random.key(0), not {describe_value(key)}"
        )


def check_function(where: str, f: Any, form: str = "f(params, *inputs)") -> None:
    """Checks a function.

    Args:
        where: name in error messages.
        f: A pure function.
        form: Form of the call, for the error message.

    Raises:
        TypeError: It is a model of a library, or cannot be called.
    """
    if (library := library_of(f)) is not None:
        raise TypeError(
            f"{where} must be a pure function {form}, not the {library} model {type(f).__name__}: "
            "f, params = jaxeff.functional(model) makes one"
        )
    if not callable(f):
        raise TypeError(f"{where} must be a pure function {form}, not {describe_value(f)}")


def check_params(where: str, params: Any) -> None:
    """Checks a pytree of parameters, which may hold shapes or random values as well.

    Args:
        where: name in error messages.
        params: Any pytree.

    Raises:
        TypeError: It is a model or the result of an inference, or a leaf is no array.
    """
    if (library := library_of(params)) is not None:
        raise TypeError(
            f"{where} must be a pytree of arrays, not the {library} model {type(params).__name__}: "
            "f, params = jaxeff.functional(model) takes them out of it"
        )
    if hasattr(params, "posterior") and hasattr(params, "likelihood"):  # of an inference
        raise TypeError(
            f"{where} is a {type(params).__name__}: pass its posterior, result.posterior, or "
            "the parameters themselves"
        )
    # A calibrated posterior is a pytree of Gaussians that moments take as it is.
    if hasattr(params, "to_gaussians") and not hasattr(params, "factors"):
        raise TypeError(
            f"{where} is a posterior ({type(params).__name__}), not a pytree of arrays: "
            "give jaxeff.bayes.to_gaussians(posterior), or call jaxeff.bayes.predict"
        )
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if not is_array(leaf):
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            raise TypeError(
                f"{where} must be a pytree of arrays, but {name or 'it'} is "
                f"{describe_value(leaf)}{way_to_array(leaf) or ''}"
            )


def library_of(model: Any) -> str | None:
    """Names the library of a model that is none of pure functions; nothing is imported for it."""
    if isinstance(model, nnx.Module | nn.Module):
        return "Flax"
    kinds = ("torch.nn", "Module", "PyTorch"), ("keras", "Model", "Keras")
    return next((name for package, kind, name in kinds if is_of(model, package, kind)), None)


def is_of(model: Any, package: str, kind: str) -> bool:
    """Returns whether a value is of a class of a package that somebody has imported."""
    return package in sys.modules and isinstance(model, getattr(sys.modules[package], kind, ()))


def is_array(x: Any) -> bool:
    """Tells whether a value is an array of numbers or a number, of JAX's or NumPy's kind."""
    if isinstance(x, np.ndarray):
        return x.dtype.kind not in "OSUMm" and x.dtype.names is None
    # Classes such as `np.float32` have these attributes too, and are callable.
    described = hasattr(x, "shape") and hasattr(x, "dtype") and not callable(x)
    number = isinstance(x, bool | int | float | complex)
    return number or (described and way_to_array(x) is None)


def way_to_array(x: Any) -> str | None:
    """Says how an array of another library, or one of no numbers, becomes one; None of others."""
    for method in ("to_numpy", "numpy"):  # pandas and Polars; PyTorch and TensorFlow
        if hasattr(x, "shape") and callable(getattr(x, method, None)):
            return f": give an array, x.{method}()"
    if isinstance(x, np.ndarray) and x.dtype.kind == "O":
        return ": rows of different lengths, or entries that are no numbers"
    return None


def describe_no_mapping(x: Any) -> str:
    """Describes a value that came for a mapping, and where the mapping is, if it holds one."""
    hint = ": give its .spec" if hasattr(x, "spec") else ""
    return f"{describe_value(x)}{hint}"


def describe_value(x: Any) -> str:
    """Describes a value in a few words."""
    if x is None or isinstance(x, bool | int | float | str):
        return repr(x) if len(repr(x)) < 60 else f"a {type(x).__name__}"
    if hasattr(x, "shape") and hasattr(x, "dtype"):
        kind = "" if isinstance(x, jax.Array | np.ndarray) else f"{type(x).__name__} "
        return f"{kind}{x.dtype}{list(x.shape)}"
    return f"a {type(x).__name__}"


def optional(module: str, what: str, extra: str) -> Any:
    """Imports a module that an extra brings.

    Args:
        module: its full name, such as ``"sklearn.datasets"``.
        what: what needs it, the subject of the error's sentence.
        extra: the extra of jaxeff's that installs it.

    Raises:
        ModuleNotFoundError: its package isn't installed.
    """
    package = module.partition(".")[0]
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or package).partition(".")[0] != package:
            raise
        raise ModuleNotFoundError(
            f"{what} needs {package}, which is optional: pip install 'jaxeff[{extra}]'",
            name=error.name,
        ) from error


def plugins(group: str) -> dict[str, metadata.EntryPoint]:
    """The entry points of a group by their names; none of them is loaded.

    Raises:
        ValueError: two distributions give different things the same name.
    """
    points: dict[str, metadata.EntryPoint] = {}
    for point in metadata.entry_points(group=group):
        other = points.setdefault(point.name, point)
        if other.value != point.value:
            raise ValueError(
                f"two installed packages name {point.name!r} in {group!r}: {other.value} and "
                f"{point.value}; uninstall one of them"
            )
    return points
