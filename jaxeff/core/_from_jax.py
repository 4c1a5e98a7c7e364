"""Models as runners and arrays by path (`LibraryModel`); how those of Flax and Equinox are read.

A dropout layer draws from a stream of random numbers that the model holds, and a batch norm in
training normalizes by its batch and writes its statistics. A function that closes over the model's
state freezes the first and forgets the second.
"""

import warnings
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.core import unfreeze
from flax.traverse_util import flatten_dict, unflatten_dict

Method = str | Callable[..., Any] | None
Leaves = dict[str, Any]
Kept = Mapping[str, tuple[np.ndarray, ...]]
"""Which indices of each axis of an array stay, by its path."""


class ChannelPlan(Protocol):
    """What says which channels a smaller model keeps: `jaxeff.pruning.Plan` is one."""

    @property
    def kept(self) -> Kept:
        """Which indices of each axis of parameters and state stay."""

    def check_small(self, tree: Any, /) -> None:
        """Raises where arrays have other shapes than the plan leaves."""


@dataclass(frozen=True)
class LibraryModel:
    """A model of any library.

    Attributes:
        run: ``run(key or None, params by path, state by path, args, kwargs)`` gives the result and
            the new state by path.
        params: The trainable arrays by path.
        state: All other arrays by path.
        restored: ``restored(params by path, state by path, kept by path)`` makes a model of the
            same library; ``kept`` says which indices of each axis a plan leaves, if there is one.
        keys: The keys of a path where they aren't its parts between slashes.
        random: Paths of random streams that a state may hold or not.
    """

    run: Callable[[Any, Leaves, Leaves, tuple[Any, ...], dict[str, Any]], tuple[Any, Leaves]]
    params: Leaves
    state: Leaves
    restored: Callable[[Leaves, Leaves, Kept], Any]
    keys: dict[str, tuple[str, ...]] = field(default_factory=dict)
    random: frozenset[str] = frozenset()


def groups_left(kept: np.ndarray, groups: int) -> int:
    """Counts the groups of a convolution that keep any of their channels `kept`."""
    return int(kept.reshape(groups, -1).any(1).sum())


def flatten(tree: Any, prefix: str = "") -> Leaves:
    """Flattens nested mappings to leaves by path; anything but a mapping is a leaf."""
    if not isinstance(tree, Mapping):
        return {prefix: tree}
    leaves: Leaves = {}
    for key, child in tree.items():
        leaves.update(flatten(child, f"{prefix}/{key}" if prefix else str(key)))
    return leaves


def nest(leaves: Mapping[str, Any], keys: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    """Builds nested dicts of leaves by path; the keys of a path are its parts if none are given."""
    return unflatten_dict(
        {keys.get(path) or tuple(path.split("/")): v for path, v in leaves.items()}
    )


class TrainingModeWarning(UserWarning):
    """A function was made of a model in training mode, which it cannot follow."""


def random_layers(model: nnx.Module) -> list[str]:
    """Lists the paths of an NNX model's layers that drop units, as they are set now."""
    return [
        path
        for path, layer in _layers(model)
        # `is False`: where the attribute is None or missing, the call decides.
        if getattr(layer, "deterministic", None) is False
        and (_number(layer, "rate") > 0 or _number(layer, "dropout_rate") > 0)
    ]


def batch_layers(model: nnx.Module) -> list[str]:
    """Lists the paths of an NNX model's layers that normalize by their batch."""
    return [
        path
        for path, layer in _layers(model)
        if getattr(layer, "use_running_average", None) is False
    ]


def warn_of_training_mode(name: str, dropping: Iterable[str], batching: Iterable[str]) -> None:
    """Warns of what a function without state and key freezes.

    `dropping` are layers whose mask is the same in every call; `batching` those that depend on the
    batch, and whose statistics are discarded.
    """
    frozen = [
        (dropping, "drops the same units in every call", "keyed=True gives f(key, params, ...)"),
        (
            batching,
            "normalizes by the batch it gets and forgets its statistics",
            "mutable=True gives f(params, state, ...)",
        ),
    ]
    notes = [(_listed(paths), what, way) for paths, what, way in frozen if paths]
    if not notes:
        return
    listed = "; ".join(f"{paths} {what}" for paths, what, _ in notes)
    ways = "; ".join(way for *_, way in notes)
    warnings.warn(
        f"{name} is in training mode: {listed}. For inference call model.eval() first (Linen: pass "
        f"train=False or the like); for training, functional(model, ...) with {ways}.",
        TrainingModeWarning,
        stacklevel=3,
    )


def _layers(model: nnx.Module) -> list[tuple[str, Any]]:
    return [
        ("/".join(map(str, path)) or type(m).__name__, m) for path, m in nnx.iter_modules(model)
    ]


def _number(layer: Any, name: str) -> float:
    value = getattr(layer, name, None)
    return float(value) if isinstance(value, int | float) else 0.0


def _listed(paths: Iterable[str]) -> str:
    paths = sorted(set(paths))
    return ", ".join(paths[:5]) + (f" and {len(paths) - 5} more" if len(paths) > 5 else "")


def read_nnx(model: nnx.Module, method: Method, keyed: bool, mutable: bool) -> LibraryModel:
    """Reads an NNX module: its parameters, and its other variables as state."""
    graphdef: nnx.GraphDef = nnx.split(model)[0]
    # Lists have integer keys in NNX; the original keys are needed to merge.
    params, param_keys = _flatten_nnx(nnx.state(model, nnx.Param))
    # With a key, random streams are no state: every call starts them from its key.
    others = nnx.Not(nnx.Any(nnx.Param, nnx.RngState)) if keyed else nnx.Not(nnx.Param)
    state, state_keys = _flatten_nnx(nnx.state(model, others))
    random = set(_flatten_nnx(nnx.state(model, nnx.RngState))[0])
    streams, stream_keys = _flatten_nnx(nnx.state(model, nnx.RngState)) if keyed else ({}, {})

    def run(
        key: Any, params: dict[str, Any], state: dict[str, Any], args: tuple, kwargs: dict
    ) -> tuple[Any, dict[str, Any]]:
        leaves = [(param_keys[path], leaf) for path, leaf in params.items()]
        leaves += [(state_keys[path], leaf) for path, leaf in state.items()]
        leaves += [(stream_keys[at], _restart(key, at, leaf)) for at, leaf in streams.items()]
        module = nnx.merge(graphdef, nnx.from_flat_state(leaves))
        result = _method_of(module, method)(*args, **kwargs)
        after, _ = _flatten_nnx(nnx.state(module, nnx.Not(nnx.Param)))
        if not mutable and method is not None:  # only the call tells what a method runs
            # An untouched variable still holds the very object it was merged with: identity tells
            # writes without comparing traced values.
            written = {path for path in state if after[path] is not state[path]}
            drawn, noted = _layers_of(written & random), _layers_of(written - random)
            warn_of_training_mode(type(model).__name__, drawn, noted)
        return result, {path: after[path] for path in state}

    def restored(params: Leaves, state: Leaves, _: Kept) -> nnx.Module:
        leaves = [(param_keys[path], leaf) for path, leaf in params.items()]
        leaves += [(state_keys[path], leaf) for path, leaf in state.items()]
        copy = nnx.clone(model)
        nnx.update(copy, nnx.from_flat_state(leaves))
        return copy

    return LibraryModel(run, params, state, restored, random=frozenset(random))


def _layers_of(paths: Iterable[str]) -> list[str]:
    """Names the layers that hold state leaves; a random stream belongs to its holder."""
    return [path.rpartition("/")[0].removesuffix("/rngs") or path for path in paths]


def _restart(key: Any, path: str, leaf: Any) -> Any:
    """Makes a stream's key from a call's key, or sets its counter to zero."""
    if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jnp.zeros(leaf.shape, leaf.dtype)
    if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        key = jax.random.wrap_key_data(key)
    # CRC-32, not `hash`, which Python seeds per process: streams are the same in every run.
    key = jax.random.fold_in(key, zlib.crc32(path.encode()))
    return jax.random.split(key, leaf.shape) if leaf.shape else key


def _flatten_nnx(tree: Any) -> tuple[dict[str, Any], dict[str, tuple]]:
    """Flattens an NNX state into arrays by path, and the original keys of each path."""
    leaves: dict[str, Any] = {}
    keys: dict[str, tuple] = {}
    for key, leaf in nnx.to_flat_state(tree):
        path = "/".join(map(str, key))
        leaves[path] = leaf.get_value() if isinstance(leaf, nnx.Variable) else leaf
        keys[path] = key
    return leaves, keys


def _method_of(module: nnx.Module, method: Method) -> Callable[..., Any]:
    if method is None:
        return module  # type: ignore[return-value]
    if isinstance(method, str):
        return getattr(module, method)
    return lambda *args, **kwargs: method(module, *args, **kwargs)


def read_linen(
    model: nn.Module, variables: Mapping[str, Any] | None, method: Method, mutable: bool
) -> LibraryModel:
    """Reads a Linen module and its variables; restoring it gives variables."""
    name = type(model).__name__
    if model.scope is not None:
        model, bound = model.unbind()
        variables = bound if variables is None else variables
    if variables is None:
        raise ValueError(
            f"{name} is a Linen module without variables: "
            "call functional(module, module.init(key, x)), or pass a bound module."
        )
    # `nn.Partitioned` and other boxes hold placement, not values: the function takes arrays.
    collections = dict(nn.meta.unbox(unfreeze(dict(variables))))
    if collections and "params" not in collections:
        raise ValueError(
            f"the variables for {name} hold {sorted(collections)} but no 'params': pass all that "
            "module.init returned (add an empty 'params' if the module has no parameters)."
        )
    weights = collections.pop("params", {})
    params, state = flatten(weights), flatten(collections)
    # Paths aren't cut at slashes again: names may have some, as those of `nn.SpectralNorm` do.
    keys = {"/".join(one): one for tree in (weights, collections) for one in flatten_dict(tree)}
    names = sorted(collections)

    def run(
        key: Any, params: dict[str, Any], state: dict[str, Any], args: tuple, kwargs: dict
    ) -> tuple[Any, dict[str, Any]]:
        if key is not None:
            kwargs = {"rngs": key, **kwargs}
        all_variables = {**nest(state, keys), "params": nest(params, keys)}
        # Existing collections are writable, so that training mode runs. Others are not: what a call
        # would create (sown intermediates) is never made.
        result, after = model.apply(all_variables, *args, method=method, mutable=names, **kwargs)
        flat = flatten(nn.meta.unbox(unfreeze(after)))
        if not mutable:
            written = [path for path in state if flat[path] is not state[path]]
            warn_of_training_mode(name, [], _layers_of(p.split("/", 1)[-1] for p in written))
        return result, {path: flat[path] for path in state}

    def restored(params: Leaves, state: Leaves, _: Kept) -> dict[str, Any]:
        return {**nest(state, keys), "params": nest(params, keys)}

    return LibraryModel(run, params, state, restored, keys)


def read_equinox(model: Any, method: Method, keyed: bool, mutable: bool) -> LibraryModel:
    """Reads a module: its inexact arrays are parameters, its other arrays state.

    It is called as its author does, commonly on one example: ``jax.vmap(f, (None, 0))`` takes a
    batch. A key is handed to its ``key`` argument, and what it returns is returned, with the new
    ``equinox.nn.State`` where the model has one.
    """
    import equinox  # only where somebody has one of its modules

    module = model if keyed or mutable else equinox.nn.inference_mode(model)
    arrays, static = equinox.partition(module, equinox.is_array)
    leaves, structure = jax.tree_util.tree_flatten_with_path(arrays)
    paths = [_path_of(keys) for keys, _ in leaves]
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
            if is_convolution(m) and (path := f"{_path_of(keys)}/weight".lstrip("/")) in kept:
                # A module's own settings are fixed, but this one was just made.
                object.__setattr__(m, "groups", groups_left(kept[path][0], m.groups))
        return result

    return LibraryModel(run, params, state, restored)


def _path_of(keys: tuple[Any, ...]) -> str:
    """Names a leaf as Python would: ``layers/0/weight``."""
    return "/".join(str(getattr(k, "name", getattr(k, "idx", getattr(k, "key", k)))) for k in keys)
