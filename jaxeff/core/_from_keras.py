"""Models of Keras 3 as runners and arrays by path."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
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
    trained = [paths[id(v)] for v in model.trainable_variables]
    others = [paths[id(v)] for v in model.non_trainable_variables]
    params = dict(zip(trained, [v.value for v in model.trainable_variables], strict=True))
    values = dict(zip(others, [v.value for v in model.non_trainable_variables], strict=True))
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
        result, after = model.stateless_call(
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
    if keras.backend.backend() != "jax":
        raise ValueError(
            f"functional: {name} runs on Keras's {keras.backend.backend()!r} backend: set "
            "KERAS_BACKEND=jax in the environment before Keras is imported, and load the model "
            "there (model.save writes a file that any backend reads)."
        )
    if method is not None:
        raise ValueError("functional: a Keras model is called as it is; it takes no method.")
    if not model.built:
        if not examples:
            raise ValueError(
                f"functional: {name} has no weights yet: give example inputs, "
                "functional(model, x), or call it once."
            )
        model(*examples)
    for layer in model._flatten_layers():
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
