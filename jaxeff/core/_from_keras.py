"""Models of Keras 3 as runners and arrays by path, also those that were built on another backend.

Keras reads its backend when it is imported, once a process. For a model of another one a second
copy of the package is imported on JAX and kept apart: its modules take the place of the first ones
in `sys.modules` while they build or compute something, and nowhere else. The model goes over by its
configuration and its weights, which are the same for all backends.

Sharp edges:
    Layers of somebody's own are classes of the first copy, and code for its backend: a model that
    has some is refused.
    A thread that imports Keras while another traces a model may get the second copy.
    The copy takes some seconds to import, and the weights are in memory twice.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from jaxeff.core._from_jax import Kept, Leaves, LibraryModel, Method, groups_left

_SIZES = {"Dense": "units", "Conv1D": "filters", "Conv2D": "filters", "Conv3D": "filters",
          "SeparableConv1D": "filters", "SeparableConv2D": "filters",
          "Conv1DTranspose": "filters", "Conv2DTranspose": "filters"}  # fmt: skip
"""Arguments that say how many channels a layer's kernel makes."""

_LOCK = threading.RLock()
_COPY: dict[str, ModuleType] = {}
"""The modules of the copy on JAX, by name, while they aren't in use."""


def read_keras(
    model: keras.Model, examples: tuple[Any, ...], method: Method, keyed: bool, mutable: bool
) -> LibraryModel:
    """Reads a model: its trainable variables, and the others (frozen ones too) as state."""
    _require_readable(model, examples, method)
    name = type(model).__name__
    takes = inspect.signature(model.call).parameters.values()
    positional = [p.name for p in takes if p.kind is p.POSITIONAL_OR_KEYWORD]
    inputs = [name for name in positional if name not in ("training", "mask")]
    open_ended = any(p.kind is p.VAR_POSITIONAL for p in takes)
    # As Keras itself does where a model's `call` doesn't ask for it.
    trains = any(p.name == "training" or p.kind is p.VAR_KEYWORD for p in takes)
    shared = _shared_prefix([v.path for v in model.variables])
    paths = {id(v): v.path[len(shared) :] for v in model.variables}
    seeds = {
        paths[id(v)]
        for v in model.non_trainable_variables
        if v.path.endswith("seed_generator_state")
    }
    call, arrays = _call_on_jax(model)
    leaves = {paths[id(v)]: array for v, array in zip(model.variables, arrays, strict=True)}
    trained = [paths[id(v)] for v in model.trainable_variables]
    others = [paths[id(v)] for v in model.non_trainable_variables]
    params, values = ({path: leaves[path] for path in names} for names in (trained, others))
    state = {path: leaf for path, leaf in values.items() if not (keyed and path in seeds)}
    shapes = {path: np.shape(leaf) for path, leaf in params.items()}

    def run(
        key: Any, params: Leaves, state: Leaves, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, Leaves]:
        if len(args) > len(inputs) and not open_ended:
            raise TypeError(
                f"{name} takes {len(inputs)} argument, not {len(args)}: several inputs are one "
                "list or dict, f(params, [a, b]); as data it is in a tuple, ([a, b],)."
            )
        kwargs = {**({"training": keyed or mutable} if trains else {}), **kwargs}
        rest = dict(state)
        for i, path in enumerate(sorted(seeds)) if keyed else ():
            rest[path] = jax.random.bits(jax.random.fold_in(key, i), (2,), jnp.uint32)
        result, after = call(
            [params[path] for path in trained], [rest[path] for path in others], *args, **kwargs
        )
        new = dict(zip(others, after, strict=True))
        return result, {path: new[path] for path in state}

    def restored(params: Leaves, state: Leaves, kept: Kept) -> keras.Model:
        changed = {path for path, leaf in params.items() if np.shape(leaf) != shapes[path]}
        copy = _rebuilt(model, params, paths, changed, kept)
        if not copy.built:
            copy.build(model.input_shape)
        leaves = {**values, **params, **state}
        _assign(copy, [paths[id(v)] for v in model.variables], leaves)
        return copy

    return LibraryModel(run, params, state, restored)


def _assign(model: keras.Model, paths: Sequence[str], leaves: Leaves) -> None:
    """Writes arrays into a model's variables, each that of a path."""
    for path, variable in zip(paths, model.variables, strict=True):
        array = np.asarray(leaves[path])
        if tuple(variable.shape) != array.shape:
            raise ValueError(
                f"restore: {path!r} is of shape {array.shape}, and the layer that "
                f"Keras builds has {tuple(variable.shape)}."
            )
        variable.assign(array)
    for layer in model._flatten_layers():
        if hasattr(layer, "finalize_state"):
            layer.finalize_state()  # a `Normalization` computes with copies of its variables


def _require_readable(model: keras.Model, examples: tuple[Any, ...], method: Method) -> None:
    """Refuses what can't be read, and builds a model that has no weights yet."""
    name = type(model).__name__
    if method is not None:
        raise ValueError("functional: a Keras model is called as it is; it takes no method.")
    if not model.built:
        if not examples:
            raise ValueError(
                f"functional: {name} has no weights yet: give example inputs, "
                "functional(model, x), or call it once."
            )
        other = keras.backend.backend() != "jax"  # has no use for JAX's arrays
        model(*(jax.tree.map(np.asarray, examples) if other else examples))
    for layer in model._flatten_layers():
        # Right in inference, but biases alone would be trained, pruned or quantized.
        if (mode := getattr(layer, "quantization_mode", None)) is not None:
            raise TypeError(
                f"functional: {layer.name} is quantized to {mode} by Keras, whose codes and scales "
                "are no parameters: give the model before model.quantize, and compression.ptq or "
                "quantized makes few bits of it."
            )
        if getattr(layer, "stateful", False):
            raise ValueError(
                f"functional: {layer.name} is stateful: what it keeps from call to call is none of "
                "the model's variables; build it with stateful=False and pass states on yourself."
            )


def _shared_prefix(paths: list[str]) -> str:
    """Returns the model's own name where every variable's path begins with it."""
    first = {path.partition("/")[0] for path in paths}
    return f"{first.pop()}/" if len(first) == 1 and all(p.count("/") > 1 for p in paths) else ""


def _rebuilt(
    model: keras.Model, params: Leaves, paths: dict[int, str], changed: set[str], kept: Kept
) -> keras.Model:
    """Builds a model again, with the numbers of channels that changed kernels have now."""

    def resized(layer: Any) -> Any:
        config = layer.get_config()
        kernel = getattr(layer, "_kernel", None)
        kernel = getattr(layer, "kernel", None) if kernel is None else kernel
        argument = _SIZES.get(type(layer).__name__)
        if argument and kernel is not None and paths[id(kernel)] in changed:
            config[argument] = int(np.shape(params[paths[id(kernel)]])[-1])
            if config.get("groups", 1) > 1 and paths[id(kernel)] in kept:
                config["groups"] = groups_left(kept[paths[id(kernel)]][-1], config["groups"])
        return type(layer).from_config(config)

    return keras.models.clone_model(model, clone_function=resized)


def _call_on_jax(model: keras.Model) -> tuple[Callable[..., Any], list[Any]]:
    """Returns a model's `stateless_call` on JAX, and its variables' values there.

    Raises:
        ValueError: The model can't be built on another backend.
    """
    if keras.backend.backend() == "jax":
        return model.stateless_call, [variable.value for variable in model.variables]
    config = _config(model)
    # What one backend's variables hold is no array of JAX: all of them become NumPy's.
    values = [keras.ops.convert_to_numpy(variable) for variable in model.variables]
    with _keras_on_jax() as jax_keras:
        _match_settings(jax_keras)
        try:
            copy = jax_keras.saving.deserialize_keras_object(config)
            if not copy.built:
                copy.build(model.input_shape)
        except Exception as error:  # whatever a layer's own code raises
            raise _refusal(model, str(error)) from error
        _copy_values(model, copy, values)

    def stateless_call(*args: Any, **kwargs: Any) -> Any:
        # Layers import parts of Keras while they compute, which must be the copy's.
        with _keras_on_jax():
            return copy.stateless_call(*args, **kwargs)

    return stateless_call, [variable.value for variable in copy.variables]


def _config(model: keras.Model) -> Any:
    # The class of a layer is looked up by its name, which in the copy is that of another backend.
    foreign = [
        layer for layer in [model, *model._flatten_layers()]
        if type(layer).__module__.partition(".")[0] != "keras"
    ]  # fmt: skip
    if foreign:
        kind = type(foreign[0]).__name__
        raise _refusal(model, f"{kind} is a class of your own, for the backend of this process")
    return keras.saving.serialize_keras_object(model)


def _copy_values(model: keras.Model, copy: Any, values: list[np.ndarray]) -> None:
    """Writes the values of a model's variables into those of its copy."""
    # Names count up over a process, so that they differ; order and shapes are the classes' own.
    if _variable_order(model) != _variable_order(copy):
        raise _refusal(model, "its configuration builds other variables than it has")
    for variable, value in zip(copy.variables, values, strict=True):
        variable.assign(value)
    for layer in copy._flatten_layers():
        if hasattr(layer, "finalize_state"):
            layer.finalize_state()  # a `Normalization` computes with copies of its variables


def _variable_order(model: Any) -> tuple[list[tuple[int, ...]], list[int]]:
    """Returns the shapes of a model's variables, and which of them are trained."""
    order = {id(variable): i for i, variable in enumerate(model.variables)}
    shapes = [tuple(variable.shape) for variable in model.variables]
    return shapes, [order[id(variable)] for variable in model.trainable_variables]


def _refusal(model: keras.Model, reason: str) -> ValueError:
    reason = reason.strip().partition("\n")[0].rstrip(".")[:200]
    return ValueError(
        f"functional: {type(model).__name__} runs on Keras's {keras.backend.backend()!r} backend "
        f"and can't be built on JAX's: {reason}. Set KERAS_BACKEND=jax in the environment before "
        "Keras is imported, and load the model there (model.save writes a file that any backend "
        "reads)."
    )


def _match_settings(jax_keras: Any) -> None:
    """Gives the copy what layers take from Keras's settings."""
    for name in ("floatx", "epsilon", "image_data_format"):
        getattr(jax_keras.config, f"set_{name}")(getattr(keras.config, name)())


@contextlib.contextmanager
def _keras_on_jax() -> Iterator[Any]:
    """Puts the copy of Keras in the place of the first, and takes it out again."""
    with _LOCK:
        # A module that is imported already is never read again, whatever the environment says.
        first = _taken_out()
        sys.modules.update(_COPY)
        backend = os.environ.get("KERAS_BACKEND")
        os.environ["KERAS_BACKEND"] = "jax"
        try:
            yield import_module("keras")
        finally:
            _COPY.update(_taken_out())
            sys.modules.update(first)
            del os.environ["KERAS_BACKEND"]
            if backend is not None:
                os.environ["KERAS_BACKEND"] = backend


def _taken_out() -> dict[str, ModuleType]:
    """Takes Keras's modules out of those that are imported."""
    names = [name for name in [*sys.modules] if name.partition(".")[0] == "keras"]
    return {name: sys.modules.pop(name) for name in names}
