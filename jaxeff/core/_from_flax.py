"""Flax models as pure functions with a pytree of parameters.

Everything in jaxeff reads functions ``f(params, *args)``. `functional` makes one from a Flax NNX
module or a Flax Linen module and its variables, so that both kinds look the same from here on:

```python
import jax
from flax import nnx

from jaxeff import functional
from jaxeff.nn import MLP, LinenMLP

model, linen_model = MLP((4, 8, 2), batch_norm=True, rngs=nnx.Rngs(0)), LinenMLP((4, 8, 2))
key, x = jax.random.key(0), jax.numpy.ones((3, 4))
f, params = functional(linen_model, linen_model.init(key, x))
f, params, state = functional(model, mutable=True)   # or keyed=True: f(key, params, ...), dropout
logits, state = f(params, state, x)        # in train mode: the state follows the batch

model.eval()
f, params = functional(model)
logits = f(params, x)
```

Sharp edges:

- What the model is now is what ``f`` computes. The module is read once: a later
  ``model.train()``, ``model.eval()`` or parameter update does not reach ``f``.
- With ``mutable=False`` (the default) batch statistics, random counters and every other state are
  a snapshot closed over by ``f``, and updates to them are discarded. Rebuild ``f`` after
  training. A dropout layer left in train mode draws the same mask on every call, and a batch norm
  normalizes by its batch: a `TrainingModeWarning` names such layers, of an NNX model when it is
  read, of a Linen module and of other methods when ``f`` is traced, for only then is it known.
- With ``keyed=True`` every stream of random numbers that an NNX model holds starts from the key of
  the call, whatever its seed was; a Linen module gets the key for all its streams.
- ``train``/``eval`` behaviour stays the model's own: call ``model.eval()`` first (NNX), or pass
  the module's keyword such as ``train=False`` to ``f`` (Linen).
- Each state leaf goes through ``checkpoint_name`` as ``jaxeff.state:<path>`` on its way in and
  ``jaxeff.new_state:<path>`` on its way out. Readers of the jaxpr tell state from data by that
  name; compiled code does not contain it.
- A write to a *parameter* during the call is discarded, as is state that the call creates (sown
  intermediates): ``new_state`` always has the structure of ``state``.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, overload

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.core import unfreeze
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.ad_checkpoint import checkpoint_name

from jaxeff.core._arguments import check_key
from jaxeff.core._training_mode import (
    TrainingModeWarning,
    batch_layers,
    random_layers,
    warn_of_training_mode,
)
from jaxeff.core._validation import validate

__all__ = ["NEW_STATE_TAG", "STATE_TAG", "TrainingModeWarning", "functional"]

STATE_TAG = "jaxeff.state:"
NEW_STATE_TAG = "jaxeff.new_state:"

Params = dict[str, Any]
State = dict[str, Any]
Method = str | Callable[..., Any] | None
# run(key or None, params by path, state by path, args, kwargs) -> (result, new state by path)
_Run = Callable[[Any, dict[str, Any], dict[str, Any], tuple, dict], tuple[Any, dict[str, Any]]]


@overload
def functional(
    model: Any,
    variables: Mapping[str, Any] | None = ...,
    *,
    mutable: Literal[False] = ...,
    keyed: bool = ...,
    method: Method = ...,
) -> tuple[Callable[..., Any], Params]: ...


@overload
def functional(
    model: Any,
    variables: Mapping[str, Any] | None = ...,
    *,
    mutable: Literal[True],
    keyed: bool = ...,
    method: Method = ...,
) -> tuple[Callable[..., tuple[Any, State]], Params, State]: ...


@validate()
def functional(
    model: Any,
    variables: Mapping[str, Any] | None = None,
    *,
    mutable: bool = False,
    keyed: bool = False,
    method: Method = None,
) -> tuple[Callable[..., Any], Params] | tuple[Callable[..., Any], Params, State]:
    """Makes a Flax model a pure function and its parameters.

    Args:
      model: A ``flax.nnx.Module``, or a ``flax.linen.Module``, bound or not. It is not changed.
      variables: What ``model.init`` returned, for a Linen module that is not bound; it overrides
        the variables of a bound one. Must be left out for NNX.
      mutable: Whether the function takes and returns the model's state.
      keyed: Whether the function takes a random key first, for dropout and whatever else is random;
        its state then has no random numbers in it.
      method: The method to call instead of ``__call__``: its name, or a function that takes the
        module first.

    Returns:
      ``(f, params)`` with ``f(params, *args, **kwargs) -> y``; with ``mutable=True``
      ``(f, params, state)`` with ``f(params, state, *args, **kwargs) -> (y, new_state)``; with
      ``keyed=True`` either takes a key before its parameters.
      ``params`` holds the trainable parameters only (``nnx.Param``, or Linen's ``"params"``
      collection), ``state`` everything else; both are nested dicts of arrays with string keys, so
      that a leaf's path reads ``blocks/1/lin/kernel``. Linen state is keyed by collection first
      (``batch_stats/bn1/mean``). For Linen, a keyword ``rngs`` of ``f`` goes to ``Module.apply``.
      A model of ``jax.ShapeDtypeStruct`` (``nnx.eval_shape``) gives a tree of those.

    Raises:
      TypeError: ``model`` is not a Flax module, or ``variables`` are given for NNX.
      ValueError: A Linen module without variables, or state that has no values to close over.
        ``f`` itself raises ``ValueError`` when its parameters or state don't fit the model,
        naming the leaf, what was expected and what was given. Any float dtype fits a float leaf.

    Warns:
      TrainingModeWarning: The model is in training mode and the function can't follow it.
    """
    named = isinstance(method, str) and callable(getattr(model, method, None))
    if not (method is None or named or (callable(method) and not isinstance(method, str))):
        raise TypeError(
            f"functional: method must be the name of a method of {type(model).__name__}, or a "
            f"function that takes it first, not {method!r}."
        )
    if isinstance(model, nnx.Module):
        if variables is not None:
            raise TypeError(
                f"{type(model).__name__} is an NNX module, which holds its own variables: "
                "call functional(model) without variables."
            )
        keys: dict[str, tuple[str, ...]] = {}
        run, params, state = _read_nnx(model, method, keyed, mutable)
    elif isinstance(model, nn.Module):
        run, params, state, keys = _read_linen(model, variables, method, mutable)
    else:
        raise TypeError(
            f"functional: model must be a flax.nnx.Module or a flax.linen.Module, not "
            f"{type(model).__name__}; a pure function f(params, *args) needs no conversion."
        )
    name = type(model).__name__
    expected_params = {path: _spec(leaf) for path, leaf in params.items()}
    expected_state = {path: _spec(leaf) for path, leaf in state.items()}

    def apply(
        key: Any, params: Params, state: State, /, *args: Any, **kwargs: Any
    ) -> tuple[Any, State]:
        given = _fit(params, expected_params, "parameter", name)
        before = _tag(_fit(state, expected_state, "state", name), STATE_TAG)
        result, after = run(key, given, before, args, kwargs)
        return result, _nest(_tag(after, NEW_STATE_TAG), keys)

    nested_params = _nest(params, keys)
    if mutable:
        return _called(apply, name, keyed), nested_params, _nest(state, keys)

    for path, leaf in state.items():
        if isinstance(leaf, jax.ShapeDtypeStruct):
            raise ValueError(
                f"{name}: state {path!r} has a shape but no value to close over: "
                "use mutable=True, or build the model with values."
            )

    if isinstance(model, nnx.Module) and method is None:
        dropping = [] if keyed else random_layers(model)
        warn_of_training_mode(name, dropping, batch_layers(model))

    def infer(key: Any, params: Params, /, *args: Any, **kwargs: Any) -> Any:
        given = _fit(params, expected_params, "parameter", name)
        return run(key, given, _tag(state, STATE_TAG), args, kwargs)[0]

    return _called(infer, name, keyed), nested_params


def _called(f: Callable[..., Any], name: str, keyed: bool) -> Callable[..., Any]:
    """Names a function after the model; it takes a key first only if it uses one."""

    # Positional only: the model's own inputs may be named `key` or `params`.
    def with_key(key: Any, params: Params, /, *args: Any, **kwargs: Any) -> Any:
        check_key(f"{name}: the first argument", key)
        return f(key, params, *args, **kwargs)

    def without(params: Params, /, *args: Any, **kwargs: Any) -> Any:
        return f(None, params, *args, **kwargs)

    called: Callable[..., Any] = with_key if keyed else without
    called.__name__ = called.__qualname__ = name
    return called


def _read_nnx(
    model: nnx.Module, method: Method, keyed: bool, mutable: bool
) -> tuple[_Run, dict[str, Any], dict[str, Any]]:
    """Splits an NNX module into a runner, its parameters and its other variables, by path."""
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

    return run, params, state


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


def _read_linen(
    model: nn.Module, variables: Mapping[str, Any] | None, method: Method, mutable: bool
) -> tuple[_Run, dict[str, Any], dict[str, Any], dict[str, tuple[str, ...]]]:
    """Splits a Linen module and its variables: a runner, parameters, state and keys, by path."""
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
    params, state = _flatten(weights), _flatten(collections)
    # Paths aren't cut at slashes again: names may have some, as those of `nn.SpectralNorm` do.
    keys = {"/".join(one): one for tree in (weights, collections) for one in flatten_dict(tree)}
    names = sorted(collections)

    def run(
        key: Any, params: dict[str, Any], state: dict[str, Any], args: tuple, kwargs: dict
    ) -> tuple[Any, dict[str, Any]]:
        if key is not None:
            kwargs = {"rngs": key, **kwargs}
        given = {**_nest(state, keys), "params": _nest(params, keys)}
        # Existing collections are writable, so that training mode runs. Others are not: what a call
        # would create (sown intermediates) is never made.
        result, after = model.apply(given, *args, method=method, mutable=names, **kwargs)
        flat = _flatten(nn.meta.unbox(unfreeze(after)))
        if not mutable:
            written = [path for path in state if flat[path] is not state[path]]
            warn_of_training_mode(name, [], _layers_of(p.split("/", 1)[-1] for p in written))
        return result, {path: flat[path] for path in state}

    return run, params, state, keys


def _flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Flattens nested mappings to leaves by path; anything but a mapping is a leaf."""
    if not isinstance(tree, Mapping):
        return {prefix: tree}
    leaves: dict[str, Any] = {}
    for key, child in tree.items():
        leaves.update(_flatten(child, f"{prefix}/{key}" if prefix else str(key)))
    return leaves


def _nest(leaves: Mapping[str, Any], keys: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    """Builds nested dicts of leaves by path; the keys of a path are its parts if none are given."""
    return unflatten_dict(
        {keys.get(path) or tuple(path.split("/")): v for path, v in leaves.items()}
    )


def _tag(leaves: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {path: checkpoint_name(leaf, prefix + path) for path, leaf in leaves.items()}


def _spec(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf))


def _fit(
    tree: Any, expected: dict[str, jax.ShapeDtypeStruct], what: str, name: str
) -> dict[str, jax.Array]:
    """Sorts the leaves of ``tree`` in the model's order; raises where they don't fit."""
    if not isinstance(tree, Mapping):
        raise ValueError(
            f"{name}: the {what}s must be a nested dict of arrays, not {type(tree).__name__}."
        )
    given = _flatten(tree) if tree else {}
    for path, spec in expected.items():
        if path not in given:
            raise ValueError(
                f"{name}: {what} {path!r} is missing, expected {_show(spec)}; "
                f"given are {sorted(given)}."
            )
    for path, leaf in given.items():
        if path not in expected:
            raise ValueError(
                f"{name}: {what} {path!r} is not one of the model's, which are {sorted(expected)}."
            )
        if not isinstance(leaf, (jax.Array, np.ndarray, np.generic, float, int)):
            raise ValueError(
                f"{name}: {what} {path!r} must be an array {_show(expected[path])}, not a "
                f"{type(leaf).__name__}; random parameters go to a transform such as "
                "jaxeff.moments(f), not to f."
            )
        if not _agrees(_spec(leaf), expected[path]):
            raise ValueError(
                f"{name}: {what} {path!r} must be {_show(expected[path])}, "
                f"but {_show(_spec(leaf))} was given."
            )
    return {path: jnp.asarray(given[path]) for path in expected}


def _agrees(given: jax.ShapeDtypeStruct, expected: jax.ShapeDtypeStruct) -> bool:
    if given.shape != expected.shape:
        return False
    # A model cast to another precision is the same model: any float fits a float leaf.
    both_float = all(jnp.issubdtype(s.dtype, jnp.floating) for s in (given, expected))
    return both_float or given.dtype == expected.dtype


def _show(spec: jax.ShapeDtypeStruct) -> str:
    return f"{spec.dtype}[{','.join(map(str, spec.shape))}]"
