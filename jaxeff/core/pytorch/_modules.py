"""Modules of PyTorch as runners and arrays by path, by way of torchax.

torchax runs a module's own Python code on JAX arrays: every operation of PyTorch becomes operations
of JAX, in PyTorch's layouts.
"""

from __future__ import annotations

import contextlib
import copy
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import torch
from torch.nn.utils import parametrize

from jaxeff.core._arguments import is_of
from jaxeff.core._from_jax import Kept, Leaves, LibraryModel, Method, groups_left
from jaxeff.core.pytorch._environment import (
    Environment,
    JittableModule,
    OperatorNotFound,
    TransformsItself,
    pytorch_environment,
)
from jaxeff.core.pytorch._tensors import Known, ModelTensor, array_of, check_current, is_tensor


def read_module(model: torch.nn.Module, method: Method, keyed: bool, mutable: bool) -> LibraryModel:
    """Reads a module: its parameters, frozen ones too, and its buffers as state."""
    model = _author_module(model)
    module = _with_plain_weights(model)
    if not (keyed or mutable):
        module.eval()

    def restored(params: Leaves, state: Leaves, kept: Kept) -> torch.nn.Module:
        result = _with_plain_weights(model)
        for path, leaf in {**params, **state}.items():
            _set(result, path.replace("/", "."), np.asarray(leaf))
        for name, first in _first_names(module).items():
            if name != first:
                owner, _, last = name.rpartition(".")
                setattr(result.get_submodule(owner), last, result.get_parameter(first))
        for name, layer in result.named_modules():
            _resize(layer, kept.get(_path(f"{name}.weight" if name else "weight")))
            _check_widths(name, layer)
        return result

    return read_callable(module, "forward" if method is None else method, mutable, restored)


def _first_names(module: torch.nn.Module) -> dict[str, str]:
    """Returns the name that each parameter is listed under: the first of those of a tied one."""
    first_names = {id(p): n for n, p in module.named_parameters()}
    return {n: first_names[id(p)] for n, p in module.named_parameters(remove_duplicate=False)}


def read_callable(
    module: torch.nn.Module, called: Any, mutable: bool, restored: Callable[..., Any]
) -> LibraryModel:
    """Reads what a module computes by a method, or by a function that takes it first."""
    callable_module = JittableModule(module)
    named = {**callable_module.params, **callable_module.buffers}
    trained = dict(module.named_parameters())
    all_names = _first_names(module)
    params = {_path(n): array_of(v) for n, v in trained.items()}
    others = {n: v for n, v in named.items() if n not in all_names}
    state = {_path(n): array_of(v) for n, v in others.items()}
    names = {_path(n): n for n in (*trained, *others)}
    # What the function closes over has values where it is traced too, and so has a tensor that is
    # no buffer: PyTorch neither saves nor loads it.
    loaded = {n for n, _ in module.named_buffers(remove_duplicate=False)} if mutable else set()
    constants = {n: Known([state[_path(n)]].copy) for n in others if n not in loaded}
    environment = pytorch_environment()

    def run(
        key: Any, params: Leaves, state: Leaves, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, Leaves]:
        arrays = {names[path]: leaf for path, leaf in {**params, **state}.items()}
        traced = any(isinstance(leaf, jax.core.Tracer) for leaf in arrays.values())
        args, kwargs = _to_tensors(environment, (args, kwargs), copied=traced)
        # Any key will do for a module that draws nothing; in training mode it draws the same again.
        drawn = _key(key) if key is not None else jax.random.key(0)

        def fresh_tensors() -> dict[str, Any]:
            tensors = environment.j2t_iso(arrays)
            for name, value in constants.items():
                tensors[name].known = value
            return {**tensors, **{n: tensors[first] for n, first in all_names.items()}}

        def computed(function: Callable[..., Any]) -> tuple[dict[str, Any], Any]:
            tensors = fresh_tensors()
            # What a forward pass makes itself (`torch.zeros`, `torch.arange`) is of JAX too.
            with (
                environment, environment.override_property(prng=drawn), torch.device("jax"),
                _hooked(module), _refusing(environment),
            ):  # fmt: skip
                return tensors, function(tensors, args, kwargs)

        try:
            tensors, result = computed(
                lambda tensors, args, kwargs: callable_module.functional_call(
                    called, tensors, {}, *args, **kwargs
                )
            )
        except TransformsItself:
            # PyTorch's recorder is imported for these alone.
            from jaxeff.core.pytorch._transformed import record

            tensors, result = computed(record(module, called, fresh_tensors(), args, kwargs))
        for part in jax.tree.leaves(result, is_leaf=is_tensor):
            check_current(part)
        after = environment.t2j_iso({path: tensors[names[path]] for path in state})
        return _plain(environment.t2j_iso(result)), after

    return LibraryModel(run, params, state, restored)


@contextlib.contextmanager
def _refusing(environment: Environment) -> Iterator[None]:
    """Says what to do about an operation that torchax doesn't know.

    Raises:
        NotImplementedError: There was one.
    """
    try:
        yield
    except OperatorNotFound as error:
        raise NotImplementedError(
            f"functional: torchax can't compute {environment.running} of PyTorch. Write it in the "
            "module of operations that it can, or take the part of the model without it: "
            "functional(model, method=...)."
        ) from error


def _author_module(model: torch.nn.Module) -> torch.nn.Module:
    """Returns the module that `torch.compile` or a `DataParallel` runs.

    Raises:
        TypeError: It has no Python code of its own, or no weights but codes.
    """
    # The compiler takes seven seconds to import, and is there if it compiled the module.
    while isinstance(model, _PARALLEL) or is_of(model, "torch._dynamo", "OptimizedModule"):
        model = model.module if isinstance(model, _PARALLEL) else model._orig_mod
    if isinstance(model, torch.jit.ScriptModule):
        raise TypeError(
            "functional: a ScriptModule has no Python code to run on JAX: give the module that it "
            "was made of."
        )
    for name, layer in model.named_modules():
        if type(layer).__module__.startswith("torch.ao.nn.quantized"):
            raise TypeError(
                f"functional: {name!r} is a quantized layer of PyTorch's: give the module before "
                "its quantization, and compression.ptq or quantized makes few bits of it."
            )
    return model


_PARALLEL = torch.nn.DataParallel | torch.nn.parallel.DistributedDataParallel


def _with_plain_weights(model: torch.nn.Module) -> torch.nn.Module:
    """Copies a module; weights that it computes of others (weight norm) are parameters there."""
    # What the last call computed can't be copied as it is, for it has slopes.
    computed = [
        v for m in model.modules() for v in vars(m).values()
        if isinstance(v, torch.Tensor) and v.grad_fn is not None
    ]  # fmt: skip
    module = copy.deepcopy(model, {id(v): v.detach().clone() for v in computed})
    for layer in [*module.modules()]:
        if parametrize.is_parametrized(layer):
            _without_parametrizations(layer)
        for hook in [*layer._forward_pre_hooks.values()]:
            if remove := _REMOVED.get(type(hook).__name__):
                remove(layer, hook.name)  # type: ignore[attr-defined]
    return module


def _without_parametrizations(layer: torch.nn.Module) -> None:
    """Makes the weights that a layer computes its parameters."""
    computing = layer.get_submodule("parametrizations").eval()  # a norm's estimate stays
    weights = {
        name: getattr(layer, name).detach().clone() for name, _ in computing.named_children()
    }
    trained = any(p.requires_grad for p in computing.parameters())
    # Not PyTorch's `remove_parametrizations`: it takes the weight from a class that a copy shares
    # with the author's own layer.
    layer.__class__ = layer.__class__.__bases__[0]
    del layer.parametrizations
    for name, value in weights.items():
        layer.register_parameter(name, torch.nn.Parameter(value, requires_grad=trained))


_REMOVED = {
    "WeightNorm": torch.nn.utils.remove_weight_norm,
    "SpectralNorm": torch.nn.utils.remove_spectral_norm,
}
"""How hooks that compute weights, PyTorch's older way, are taken out."""


def _path(name: str) -> str:
    return name.replace(".", "/")


def _to_tensors(environment: Environment, tree: Any, copied: bool) -> Any:
    """Returns inputs with JAX's and NumPy's arrays and PyTorch's tensors as the environment's.

    In a function that is traced a copy is abstract, as parameters are: code that asks whether it is
    traced, as transformers' does before it looks at values, would be told by an input that isn't.
    The copy's value stays known to what can't do without it, such as lengths.
    """

    def converted(leaf: Any) -> Any:
        with jax.ensure_compile_time_eval():
            if isinstance(leaf, torch.Tensor):
                leaf = array_of(leaf)
            if isinstance(leaf, np.ndarray):
                leaf = jax.numpy.asarray(leaf)
        if not isinstance(leaf, jax.Array):
            return leaf
        if isinstance(leaf, jax.core.Tracer) or not copied:
            return ModelTensor(leaf, environment)
        tensor = ModelTensor(jax.numpy.copy(leaf), environment)
        tensor.known = Known([leaf].copy)
        return tensor

    return jax.tree.map(converted, tree, is_leaf=is_tensor)


def _key(key: Any) -> Any:
    if not jax.numpy.issubdtype(key.dtype, jax.dtypes.prng_key):
        key = jax.random.wrap_key_data(key)
    return jax.random.fold_in(key, zlib.crc32(b"torch"))


@contextlib.contextmanager
def _hooked(module: torch.nn.Module) -> Iterator[None]:
    """Names what layers compute after them, and has batch norms follow their batches.

    So layers without parameters have names too. torchax computes a batch norm's new statistics and
    drops them.
    """
    handles, scopes = [], []

    def enter(name: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            scopes.append(jax.named_scope(name))
            scopes[-1].__enter__()

        return hook

    def leave(*_: Any) -> None:
        scopes.pop().__exit__(None, None, None)

    def with_hooks(name: str, layer: torch.nn.Module) -> None:
        handles.append(layer.register_forward_pre_hook(enter(name)))
        handles.append(layer.register_forward_hook(leave, always_call=True))
        if isinstance(layer, torch.nn.modules.batchnorm._BatchNorm):
            handles.append(layer.register_forward_hook(_follow_batch))

    for parent in module.modules():
        for name, layer in parent.named_children():
            with_hooks(name, layer)
    try:
        # The model's own scope is around them all, as those of Flax have it.
        with jax.named_scope(type(module).__name__):
            yield
    finally:
        for handle in handles:
            handle.remove()
        while scopes:  # an error left them open
            leave()


def _follow_batch(layer: Any, inputs: tuple[Any, ...], _: Any) -> None:
    """Moves the running statistics of a batch norm in training towards those of its batch."""
    if not (layer.training and layer.track_running_stats):
        return
    x = inputs[0]
    axes = [axis for axis in range(x.ndim) if axis != 1]
    # Without a momentum the statistics are the mean over all batches so far.
    share = layer.momentum if layer.momentum is not None else 1 / layer.num_batches_tracked
    for running, batch in (
        (layer.running_mean, x.mean(axes)), (layer.running_var, x.var(axes, unbiased=True))
    ):  # fmt: skip
        running.copy_(running + share * (batch.detach() - running))


def _plain(result: Any) -> Any:
    """Returns a result in containers that JAX knows, without what is None."""
    if isinstance(result, Mapping):
        return {name: _plain(value) for name, value in result.items() if value is not None}
    if isinstance(result, Sequence) and not isinstance(result, str):
        plain = [_plain(value) for value in result]
        return plain if isinstance(result, list) else tuple(plain)
    return result


def _set(module: torch.nn.Module, name: str, value: np.ndarray) -> None:
    """Puts an array where a parameter or buffer is, as one of its dtype."""
    owner_name, _, last = name.rpartition(".")
    owner = module.get_submodule(owner_name)
    before = getattr(owner, last)
    tensor = torch.tensor(value.astype(np.float32) if value.dtype.name == "bfloat16" else value)
    tensor = tensor.to(dtype=before.dtype, device=before.device)
    if isinstance(before, torch.nn.Parameter):
        tensor = torch.nn.Parameter(tensor, requires_grad=before.requires_grad)
    setattr(owner, last, tensor)


def _resize(layer: torch.nn.Module, kept: Sequence[np.ndarray] | None) -> None:
    """Corrects the numbers of channels that a layer remembers, which its weight tells.

    How many groups a convolution has left it doesn't: a plan says which of its channels are kept.
    """
    if isinstance(layer, torch.nn.RNNBase):
        layer.input_size, layer.hidden_size = (
            layer.get_parameter(name).shape[1] for name in ("weight_ih_l0", "weight_hh_l0")
        )
    weight = getattr(layer, "weight", None)
    if not isinstance(weight, torch.Tensor):
        return
    if isinstance(layer, torch.nn.Linear):
        layer.out_features, layer.in_features = weight.shape
    elif isinstance(layer, torch.nn.modules.conv._ConvTransposeNd):
        if kept is not None:
            layer.groups = groups_left(kept[0], layer.groups)
        layer.in_channels, layer.out_channels = weight.shape[0], weight.shape[1] * layer.groups
    elif isinstance(layer, torch.nn.modules.conv._ConvNd):
        if kept is not None:
            layer.groups = groups_left(kept[0], layer.groups)
        elif 1 < layer.groups == layer.in_channels:  # depthwise: a group a channel
            layer.groups = weight.shape[0] * layer.in_channels // layer.out_channels
        layer.out_channels, layer.in_channels = weight.shape[0], weight.shape[1] * layer.groups
    elif isinstance(layer, torch.nn.modules.batchnorm._NormBase):
        layer.num_features = weight.shape[0]
    elif isinstance(layer, torch.nn.GroupNorm):
        # A group's statistics are of all of its channels, so whole groups go.
        layer.num_groups = weight.shape[0] * layer.num_groups // layer.num_channels
        layer.num_channels = weight.shape[0]
    elif isinstance(layer, torch.nn.LayerNorm):
        layer.normalized_shape = tuple(weight.shape)
    elif isinstance(layer, torch.nn.Embedding):
        layer.num_embeddings, layer.embedding_dim = weight.shape


def _check_widths(name: str, layer: torch.nn.Module) -> None:
    """Refuses widths that PyTorch's layer can't have: it keeps one for all that it consists of."""
    if isinstance(layer, torch.nn.RNNBase):
        alike: torch.nn.Module = type(layer)(
            **{field: getattr(layer, field) for field in _RECURRENT}, device="meta",
            **{"proj_size": layer.proj_size} if layer.proj_size else {},
        )  # fmt: skip
    elif isinstance(layer, torch.nn.MultiheadAttention):
        alike = torch.nn.MultiheadAttention(
            layer.embed_dim, layer.num_heads, bias=layer.in_proj_bias is not None,
            add_bias_kv=layer.bias_k is not None, kdim=layer.kdim, vdim=layer.vdim, device="meta",
        )  # fmt: skip
    else:
        return
    expected = {path: tuple(w.shape) for path, w in alike.named_parameters()}
    for path, w in layer.named_parameters():
        if expected.get(path) != tuple(w.shape):
            raise ValueError(
                f"{name}.{path}: {tuple(w.shape)} is no shape that {type(layer).__name__} can have "
                f"beside its other weights, which want {expected.get(path)}; prune no site of "
                f"{name}"
            )


_RECURRENT = (
    "input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout", "bidirectional",
)  # fmt: skip
