"""Modules of Equinox as runners and arrays by path."""

from typing import Any

import equinox
import jax

from jaxeff.core._from_flax import Kept, Leaves, LibraryModel, Method, groups_left


def read_equinox(model: Any, method: Method, keyed: bool, mutable: bool) -> LibraryModel:
    """Reads a module: its inexact arrays are parameters, its other arrays state.

    It is called as its author does, commonly on one example: ``jax.vmap(f, (None, 0))`` takes a
    batch. A key is handed to its ``key`` argument, and what it returns is returned, with the new
    ``equinox.nn.State`` where the model has one.
    """
    module = model if keyed or mutable else equinox.nn.inference_mode(model)
    arrays, static = equinox.partition(module, equinox.is_array)
    leaves, structure = jax.tree_util.tree_flatten_with_path(arrays)
    paths = [_path(keys) for keys, _ in leaves]
    by_path = {path: leaf for path, (_, leaf) in zip(paths, leaves, strict=True)}
    params = {path: leaf for path, leaf in by_path.items() if equinox.is_inexact_array(leaf)}
    state = {path: leaf for path, leaf in by_path.items() if path not in params}

    def module_of(params: Leaves, state: Leaves, static: Any) -> Any:
        values = {**params, **state}
        tree = jax.tree_util.tree_unflatten(structure, [values[path] for path in paths])
        return equinox.combine(tree, static)

    def run(
        key: Any, params: Leaves, state: Leaves, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, Leaves]:
        called = module_of(params, state, static)
        if key is not None:
            kwargs = {"key": key, **kwargs}
        if method is None:
            return called(*args, **kwargs), state
        if isinstance(method, str):
            return getattr(called, method)(*args, **kwargs), state
        return method(called, *args, **kwargs), state

    def restored(params: Leaves, state: Leaves, kept: Kept) -> Any:
        result = module_of(params, state, equinox.partition(model, equinox.is_array)[1])
        is_convolution = lambda m: isinstance(m, equinox.nn.Conv)  # noqa: E731
        for keys, m in jax.tree_util.tree_leaves_with_path(result, is_leaf=is_convolution):
            if is_convolution(m) and (path := f"{_path(keys)}/weight".lstrip("/")) in kept:
                # A module's own settings are fixed, but this one was just made.
                object.__setattr__(m, "groups", groups_left(kept[path][0], m.groups))
        return result

    return LibraryModel(run, params, state, restored)


def _path(keys: tuple[Any, ...]) -> str:
    """Names a leaf as Python would: ``layers/0/weight``."""
    return "/".join(str(getattr(k, "name", getattr(k, "idx", getattr(k, "key", k)))) for k in keys)
