"""Models of Flax and other libraries as pure functions with a pytree of parameters.

Everything in jaxeff reads functions ``f(params, *args)``. `functional` makes one of a model of
Flax, PyTorch, Keras or Equinox, or of a file of ONNX or LiteRT, so that all look the same from here
on, and `restore` puts other parameters into the author's own model:

```python
import jax
from flax import nnx

from jaxeff import functional, restore
from jaxeff.nn import MLP, LinenMLP

model, linen_model = MLP((4, 8, 2), batch_norm=True, rngs=nnx.Rngs(0)), LinenMLP((4, 8, 2))
key, x = jax.random.key(0), jax.numpy.ones((3, 4))
f, params = functional(linen_model, linen_model.init(key, x))
f, params, state = functional(model, mutable=True)   # or keyed=True: f(key, params, ...), dropout
logits, state = f(params, state, x)        # in train mode: the state follows the batch

model.eval()
f, params = functional(model)
logits = f(params, x)
model = restore(model, params)
```
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, Literal, overload

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from jaxeff.core import _from_jax as from_jax
from jaxeff.core._arguments import check_key, is_of, plugins
from jaxeff.core._checks import parameter_tree, validate
from jaxeff.core._from_jax import (
    ChannelPlan,
    Kept,
    LibraryModel,
    Method,
    TrainingModeWarning,
    flatten,
    nest,
)

__all__ = ["NEW_STATE_TAG", "STATE_TAG", "TrainingModeWarning", "functional", "restore"]

STATE_TAG = "jaxeff.state:"
NEW_STATE_TAG = "jaxeff.new_state:"
DOORS = "jaxeff.doors"
"""Group of entry points that read models of further libraries."""
_ONNX = ("jaxeff_export.onnx_files", "read_onnx_model")
_FILES = {".onnx": _ONNX, ".tflite": ("jaxeff_export.litert_files", "read_litert_model")}
"""Packages that read files by their ending, and their readers."""

Params = dict[str, Any]
State = dict[str, Any]


@overload
def functional(
    model: Any, *args: Any, mutable: Literal[False] = ..., keyed: bool = ..., method: Method = ...
) -> tuple[Callable[..., Any], Params]: ...


@overload
def functional(
    model: Any, *args: Any, mutable: Literal[True], keyed: bool = ..., method: Method = ...
) -> tuple[Callable[..., tuple[Any, State]], Params, State]: ...


@validate()
def functional(
    model: Any, *args: Any, mutable: bool = False, keyed: bool = False, method: Method = None
) -> tuple[Callable[..., Any], Params] | tuple[Callable[..., Any], Params, State]:
    """Makes a model of Flax, PyTorch, Keras, Equinox or a file a pure function and its parameters.

    Sharp edges:

    - What the model is now is what ``f`` computes. The module is read once: a later
      ``model.train()``, ``model.eval()`` or parameter update does not reach ``f``.
    - With ``mutable=False`` (the default) batch statistics, random counters and every other state
      are a snapshot closed over by ``f``, and updates to them are discarded. Rebuild ``f`` after
      training. A dropout layer left in train mode draws the same mask on every call, and a batch
      norm normalizes by its batch: a `TrainingModeWarning` names such layers, of an NNX model when
      it is read, of a Linen module and of other methods when ``f`` is traced, for only then is it
      known.
    - With ``keyed=True`` every stream of random numbers that an NNX model holds starts from the key
      of the call, whatever its seed was; a Linen module gets the key for all its streams. Its
      state, which has no streams, is one of the same model in inference, too: dropout beside batch
      norm.
    - ``train``/``eval`` behaviour stays the model's own: call ``model.eval()`` first (NNX), or pass
      the module's keyword such as ``train=False`` to ``f`` (Linen). Modules of PyTorch, Keras and
      Equinox infer unless ``mutable`` or ``keyed`` is asked for: then PyTorch's are in the mode
      they are in, and the others train.
    - Each state leaf goes through ``checkpoint_name`` as ``jaxeff.state:<path>`` on its way in and
      ``jaxeff.new_state:<path>`` on its way out. Readers of the jaxpr tell state from data by that
      name; compiled code does not contain it.
    - A write to a *parameter* during the call is discarded, as is state that the call creates (sown
      intermediates): ``new_state`` always has the structure of ``state``.

    Args:
      model: A ``flax.nnx.Module``; a ``flax.linen.Module``, bound or not; a ``torch.nn.Module``
        or ``torch.export.ExportedProgram``, or the path of its ``.pt2`` file
        (``pip install jaxeff[torch]``); a Keras 3 model (one of another backend is built again
        on JAX's); an ``equinox.Module``; the path of a ``.tflite`` or ``.onnx`` file, or an
        ``onnx.ModelProto``
        (``pip install jaxeff[onnx]``). It is not changed. A model of another library is read by an
        installed package that has an entry point in the group `jaxeff.doors`, named as that
        library's package: a function of the model and ``args`` to ``(f, params)``.
      *args: For a Linen module that is not bound, what ``module.init`` returned; it overrides the
        variables of a bound one. For a Keras model that has no weights yet, inputs to build it by.
        None otherwise.
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
      that a leaf's path reads ``blocks/1/lin/kernel``; names are the model's own (PyTorch's
      ``layer1.0.conv1`` is ``layer1/0/conv1``), and so are layouts. Linen state is keyed by
      collection first (``batch_stats/bn1/mean``). For Linen, a keyword ``rngs`` of ``f`` goes to
      ``Module.apply``.
      A model of ``jax.ShapeDtypeStruct`` (``nnx.eval_shape``) gives a tree of those. What ``f``
      closes over of it, such as running statistics, is NaN then: it is read by shapes alone.

    Raises:
      TypeError: ``model`` is of none of these kinds, or ``args`` don't belong to it.
      ImportError: PyTorch's modules need ``torchax``, ONNX files ``onnx`` and ``jaxeff_export``.
      ValueError: A Linen module without variables, or state of no floats (a stream of random
        numbers) that has no values to close over.
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
    reading = _read_model(model, args, method, keyed, mutable)
    run, params, state, keys = reading.run, reading.params, reading.state, reading.keys
    channels = "first" if _is_of_pytorch(model) else None
    if isinstance(model, nnx.Module | nn.Module) or _ending(model) == ".tflite":
        channels = "last"
    name = Path(model).stem if _ending(model) in (*_FILES, ".pt2") else type(model).__name__
    expected_params = {path: _spec(leaf) for path, leaf in params.items()}
    expected_state = {path: _spec(leaf) for path, leaf in state.items()}

    def apply(
        key: Any, params: Params, state: State, /, *args: Any, **kwargs: Any
    ) -> tuple[Any, State]:
        fitted = _fit(params, expected_params, "parameter", name)
        complete, besides, added = _with_streams(state, reading)
        before = _tag(_fit(complete, expected_state, "state", name), STATE_TAG)
        with _inputs_named(name, args, channels):
            result, after = run(key, fitted, before, args, kwargs)
        # An untouched leaf is the very object it was: the call drew from all others.
        for path in sorted(p for p in added if after[p] is not before[p]):
            raise ValueError(
                f"{name}: state {path!r} is missing, from which the model draws: in training give "
                "keyed=True to functional, for inference call model.eval() before."
            )
        kept = {path: leaf for path, leaf in after.items() if path not in added}
        return result, nest(_tag(kept, NEW_STATE_TAG) | besides, keys)

    nested_params = nest(params, keys)
    if mutable:
        return _called(apply, name, keyed), nested_params, nest(state, keys)

    unknown = {path for path, leaf in state.items() if isinstance(leaf, jax.ShapeDtypeStruct)}
    for path in unknown:
        if not jnp.issubdtype(state[path].dtype, jnp.floating):
            raise ValueError(
                f"{name}: state {path!r} has a shape but no value to close over: "
                "use mutable=True, or build the model with values."
            )

    if isinstance(model, nnx.Module) and method is None:
        dropping = [] if keyed else from_jax.random_layers(model)
        from_jax.warn_of_training_mode(name, dropping, from_jax.batch_layers(model))

    def infer(key: Any, params: Params, /, *args: Any, **kwargs: Any) -> Any:
        fitted = _fit(params, expected_params, "parameter", name)
        # NaN, so that no result can be taken for one of the model with its values.
        closed = {
            path: jnp.full(leaf.shape, jnp.nan, leaf.dtype) if path in unknown else leaf
            for path, leaf in state.items()
        }
        with _inputs_named(name, args, channels):
            return run(key, fitted, _tag(closed, STATE_TAG), args, kwargs)[0]

    return _called(infer, name, keyed), nested_params


@validate(params=parameter_tree)
def restore(
    model: Any,
    params: Params,
    state: State | None = None,
    *args: Any,
    plan: ChannelPlan | None = None,
) -> Any:
    """Makes a model of the author's own kind that holds other parameters: `functional`'s way back.

    Args:
      model: The model as it was given to `functional`. It is not changed.
      params: Parameters after training, quantization or pruning. Arrays of other shapes are
        taken where the model's library can hold them: PyTorch's and Equinox's modules, Linen's
        variables, and layers of Keras that are built from a number of units or filters.
      state: Other arrays, as ``functional(model, mutable=True)`` returns them; those that
        the model has if left out, of which a plan leaves what it says.
      *args: Variables or examples, as for `functional`.
      plan: The `Plan` that made ``params`` smaller. It says what shapes don't: how many groups
        of a grouped convolution are left.

    Returns:
      A copy of the module with these values; for Linen its variables, ``module.apply``'s first
      argument.

    Raises:
      TypeError: ``model`` is of no kind that `functional` takes, or ``plan`` is no plan.
      ValueError: A parameter is missing, unknown, or of a shape that the model can't hold, or
        that isn't what the plan leaves.
    """
    if not isinstance(params, Mapping):
        raise TypeError(
            f"restore: params must be a nested dict of arrays, not {type(params).__name__}. Codes "
            "are none of the model's: give floats on their grids, as compression.round_weights "
            "makes them."
        )
    reading = _read_model(model, args, None, keyed=False, mutable=False)
    kept: Kept = {}
    if plan is not None:
        if not hasattr(plan, "check_small"):
            raise TypeError(
                f"restore: plan must be a Plan, as prune_plan makes one, not {type(plan).__name__}."
            )
        kept = plan.kept
        plan.check_small(params)
    leaves = {
        path: leaf[np.ix_(*kept[path])] if path in kept and np.ndim(leaf) else leaf
        for path, leaf in reading.state.items()
    } | (flatten(state) if state else {})
    values = flatten(params)
    _check_paths(model, "parameter", values, reading.params)
    _check_paths(model, "state", leaves, reading.state)
    if state is None and plan is None and reading.state:
        _check_shapes(values, reading.params)
    return reading.restored(values, leaves, kept)


def _check_paths(
    model: Any, what: str, leaves: Mapping[str, Any], expected: Mapping[str, Any]
) -> None:
    """Checks that leaves to restore are those of the model, none more and none less."""
    missing, unknown = sorted({*expected} - {*leaves}), sorted({*leaves} - {*expected})
    if missing or unknown:
        name = (missing or unknown)[0]
        raise ValueError(
            f"restore: {what} {name!r} {'is missing' if missing else 'is none of the model'}; "
            f"a {type(model).__name__} has {sorted(expected)}."
        )


def _check_shapes(values: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Checks that no parameter became smaller: state that nothing says more of has old shapes."""
    for path, leaf in values.items():
        if np.shape(leaf) != np.shape(expected[path]):
            raise ValueError(
                f"restore: {path!r} is {_show(_spec(leaf))} and was "
                f"{_show(_spec(expected[path]))}, and the model's state has shapes of its own: "
                "give the plan, restore(model, params, plan=plan), or state=plan.shrink(state), of "
                "functional(model, mutable=True)."
            )


def _read_model(
    model: Any, args: tuple[Any, ...], method: Method, keyed: bool, mutable: bool
) -> LibraryModel:
    """Reads a model by its library, none of which is imported that its user hasn't."""
    name = type(model).__name__
    if isinstance(model, nn.Module):
        if len(args) > 1:
            raise TypeError(f"functional: {name} takes its variables alone, not {len(args)} more.")
        return from_jax.read_linen(model, args[0] if args else None, method, mutable)
    if is_of(model, "keras", "Model"):
        from jaxeff.core._from_keras import read_keras  # Keras is imported only for its models

        return read_keras(model, args, method, keyed, mutable)
    if (door := _installed_door(model)) is not None:
        return _read_through(door, model, args, (method, keyed, mutable))
    if args:
        raise TypeError(
            "functional: argument 1 beside the model is for Linen's variables and Keras's inputs; "
            f"{name} is a module that holds its own variables: call functional(model)."
        )
    if isinstance(model, nnx.Module):
        return from_jax.read_nnx(model, method, keyed, mutable)
    if _is_of_pytorch(model):
        from jaxeff.core.pytorch import read_torch  # PyTorch is imported only for its models

        return read_torch(model, method, keyed, mutable)
    if is_of(model, "equinox", "Module"):
        return from_jax.read_equinox(model, method, keyed, mutable)
    if isinstance(model, LibraryModel):
        return model  # read already
    ending = ".onnx" if is_of(model, "onnx", "ModelProto") else _ending(model)
    if ending in _FILES:
        package, reader = _FILES[ending]
        try:
            # Files are read beside where they are written, in a package that this one runs without
            # and is never built on: only a model that needs it loads it.
            files = import_module(package)
        except ImportError as error:
            raise ImportError(f"functional: a file {ending} is read by jaxeff_export.") from error
        library_model: LibraryModel = getattr(files, reader)(model)
        return library_model
    raise TypeError(
        "functional: model must be a module of Flax (NNX or Linen), PyTorch, Keras or Equinox, or "
        f"the path of an .onnx, .tflite or .pt2 file, not {name}; {_way_out(model)}."
    )


def _installed_door(model: Any) -> EntryPoint | None:
    """Finds the plug-in that reads a model: it is named as the package of one of its classes."""
    packages = [each.__module__.partition(".")[0] for each in type(model).__mro__]
    installed = plugins(DOORS)
    return next((installed[name] for name in packages if name in installed), None)


def _read_through(
    door: EntryPoint, model: Any, args: tuple[Any, ...], options: tuple[Method, bool, bool]
) -> LibraryModel:
    """Reads a model by a plug-in, which gives a pure function and its parameters."""
    if any(options):
        raise TypeError(
            f"functional: {door.value} reads a {type(model).__name__} without method, keyed or "
            "mutable: leave them out."
        )
    f, params = door.load()(model, *args)

    def run(key: Any, fitted: Any, state: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        del key
        return f(nest(fitted, {}), *args, **kwargs), state

    def restored(*_: Any) -> Any:
        raise TypeError(f"restore: {door.value} reads models and writes none.")

    return LibraryModel(run, flatten(params), {}, restored)


def _with_streams(state: Any, reading: LibraryModel) -> tuple[Any, dict[str, Any], set[str]]:
    """Brings a state of a function with keys to one without, and the other way round.

    Returns the state that the model takes, the random streams that it has no use for, and the
    paths of those that the state left out: they are the model's own.
    """
    if not reading.random or not isinstance(state, Mapping):
        return state, {}, set()
    leaves = flatten(state)
    besides = {p: leaf for p, leaf in leaves.items() if p in reading.random - reading.state.keys()}
    added = {
        path: leaf
        for path, leaf in reading.state.items()
        if path in reading.random - leaves.keys() and not isinstance(leaf, jax.ShapeDtypeStruct)
    }
    taken = {path: leaf for path, leaf in leaves.items() if path not in besides}
    return taken | added, besides, set(added)


def _way_out(model: Any) -> str:
    """Says how what is no model becomes one."""
    if isinstance(model, Mapping):
        return "weights alone say nothing of layers: model.load_state_dict(weights), and give model"
    if isinstance(model, (str, os.PathLike)) and Path(model, "saved_model.pb").is_file():
        return _to_tflite(f"{os.fspath(model)!r} is a SavedModel", repr(os.fspath(model)))
    if isinstance(model, (str, os.PathLike)):
        return "load the model by its own library, as keras.models.load_model(path), and give that"
    # What `tensorflow.saved_model.load` returns is no `tensorflow.Module`.
    of_tensorflow = type(model).__module__.partition(".")[0] == "tensorflow"
    if of_tensorflow or is_of(model, "tensorflow", "Module"):
        saved = "tensorflow.saved_model.save(model, 'folder')"
        return _to_tflite(f"TensorFlow's modules are no functions of JAX: {saved}", "'folder'")
    return "a pure function f(params, *args) needs no conversion"


def _to_tflite(reason: str, folder: str) -> str:
    return (
        f"{reason}. Where TensorFlow is installed, Path('model.tflite').write_bytes("
        f"tensorflow.lite.TFLiteConverter.from_saved_model({folder}).convert()) makes a file that "
        "functional reads"
    )


def _is_of_pytorch(model: Any) -> bool:
    kinds = ("torch.nn", "Module"), ("torch.export", "ExportedProgram")
    return _ending(model) == ".pt2" or any(is_of(model, *kind) for kind in kinds)


def _ending(model: Any) -> str:
    return Path(model).suffix if isinstance(model, (str, os.PathLike)) else ""


@contextlib.contextmanager
def _inputs_named(name: str, args: tuple[Any, ...], channels: str | None) -> Iterator[None]:
    """Adds a model's inputs to what a layer says of shapes, and what is often wrong with them."""
    try:
        yield
    except (TypeError, ValueError) as error:
        # Arrays of texts have no dtype of JAX (what refused them has said so), nor have tensors.
        leaves = [leaf for leaf in jax.tree.leaves(args) if _is_of_numbers(leaf)]
        said = ", ".join(_show(_spec(leaf)) for leaf in leaves)
        if leaves and not any(
            "was called with" in note for note in getattr(error, "__notes__", ())
        ):
            error.add_note(f"{name} was called with {said}.{_likely(leaves[0], channels)}")
        raise


def _is_of_numbers(leaf: Any) -> bool:
    # A dtype of PyTorch's has no name.
    named = hasattr(leaf, "shape") and hasattr(leaf.dtype, "name")
    return named and getattr(leaf.dtype, "kind", "") not in tuple("OSU")


def _likely(x: Any, channels: str | None) -> str:
    """Guesses what is wrong with the first input of a model that failed."""
    shape = tuple(x.shape)
    if jnp.issubdtype(jnp.result_type(x), jnp.integer) and len(shape) == 1:
        return " These look like labels: data are (inputs, labels), in this order."
    if len(shape) in (1, 3):
        return " Is the axis of examples missing? x[None] is a batch of one."
    if len(shape) == 4 and channels == "last" and shape[1] in (1, 2, 3, 4) and shape[3] > shape[1]:
        return " Do channels come first? Flax has them last: x.transpose(0, 2, 3, 1)."
    if len(shape) == 4 and channels == "first" and shape[3] in (1, 2, 3, 4) and shape[1] > shape[3]:
        return " Do channels come last? PyTorch has them first: x.transpose(0, 3, 1, 2)."
    return ""


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
            f"{name}: the {what}s must be a nested dict of arrays, not {type(tree).__name__}; they "
            "come before the inputs, f(params, x)."
        )
    leaves = flatten(tree) if tree else {}
    for path, spec in expected.items():
        if path not in leaves:
            dotted = path.replace("/", ".") in leaves
            hint = " A state_dict goes into the module: model.load_state_dict(...)."
            raise ValueError(
                f"{name}: {what} {path!r} is missing, expected {_show(spec)}; "
                f"given are {sorted(leaves)}.{hint if dotted else ''}"
            )
    for path, leaf in leaves.items():
        if path not in expected:
            raise ValueError(
                f"{name}: {what} {path!r} is not one of the model's, which are {sorted(expected)}."
            )
        if not isinstance(leaf, (jax.Array, np.ndarray, np.generic, float, int)):
            raise ValueError(
                f"{name}: {what} {path!r} must be an array {_show(expected[path])}, not a "
                f"{type(leaf).__name__}: arrays are JAX's or NumPy's, and random parameters go to "
                "a transform such as jaxeff.moments(f), not to f."
            )
        if not _agrees(_spec(leaf), expected[path]):
            raise ValueError(
                f"{name}: {what} {path!r} must be {_show(expected[path])}, "
                f"but {_show(_spec(leaf))} was given."
            )
    return {path: jnp.asarray(leaves[path]) for path in expected}


def _agrees(actual: jax.ShapeDtypeStruct, expected: jax.ShapeDtypeStruct) -> bool:
    if actual.shape != expected.shape:
        return False
    # A model cast to another precision is the same model: any float fits a float leaf.
    both_float = all(jnp.issubdtype(s.dtype, jnp.floating) for s in (actual, expected))
    return both_float or actual.dtype == expected.dtype


def _show(spec: jax.ShapeDtypeStruct) -> str:
    return f"{spec.dtype}[{','.join(map(str, spec.shape))}]"
