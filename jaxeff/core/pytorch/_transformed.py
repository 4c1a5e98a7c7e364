"""Modules of PyTorch that differentiate or vectorize themselves: `torch.func`, `autograd.grad`.

PyTorch's own transforms can't see through the tensors of another library. What such a module
computes is recorded as a graph of operations, derivatives among them, on tensors without values;
the graph is run on JAX.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._decomp import core_aten_decompositions
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.func import functional_call, functionalize
from torch.fx import traceback
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils import _pytree as pytree

from jaxeff.core.pytorch._graphs import GraphRun
from jaxeff.core.pytorch._tensors import is_tensor


def record(
    module: torch.nn.Module,
    called: Any,
    tensors: dict[str, Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Callable[[dict[str, Any], Any, Any], Any]:
    """Records what a module that transforms itself computes.

    Args:
        module: The module.
        called: The name of a method, or a function that takes the module first.
        tensors: Parameters and buffers by PyTorch's names.
        args: Inputs; tensors tell shapes and dtypes, what is no tensor is part of the record.
        kwargs: Inputs by name.

    Returns:
        The recorded function of tensors, args and kwargs, which writes into buffers as the module
        does.

    Raises:
        NotImplementedError: The module asks for values of its inputs or parameters.
    """
    module = _Calling(module, called)
    leaves, spec = _flattened(tensors, args, kwargs)
    places = [i for i, leaf in enumerate(leaves) if is_tensor(leaf)]
    form: list[Any] = []

    def flat(*values: torch.Tensor) -> list[torch.Tensor]:
        # What is no tensor stays as it was: a number is part of the record.
        filled = list(leaves)
        for place, value in zip(places, values, strict=True):
            filled[place] = value
        named, args, kwargs = pytree.tree_unflatten(filled, spec)
        results, form[:] = _split(functional_call(module, named, args, kwargs))
        return results

    # Memory that is never touched: the recorder asks for sizes and dtypes alone.
    like = [torch.empty(leaves[i].shape, dtype=leaves[i].dtype) for i in places]
    graph = _recording(flat, like, module.module)
    graph.graph.eliminate_dead_code()  # questions about sizes
    graph.recompile()

    def recorded(tensors: dict[str, Any], args: Any, kwargs: Any) -> Any:
        # In the order of the recording, whatever the order of the mappings.
        leaves = _flattened(tensors, args, kwargs)[0]
        return _joined(GraphRun(graph).run(*(leaves[i] for i in places)), *form)

    return recorded


def _recording(
    flat: Callable[..., list[torch.Tensor]], like: list[torch.Tensor], module: torch.nn.Module
) -> torch.fx.GraphModule:
    """Records a function of tensors as a graph that writes into its inputs alone."""
    try:
        with traceback.preserve_node_meta(), _annotated(module):
            writing = make_fx(flat, core_aten_decompositions(), tracing_mode="fake")(*like)
    except (DataDependentOutputException, GuardOnDataDependentSymNode) as error:
        raise NotImplementedError(
            "functional: a module that differentiates or vectorizes itself (torch.func, "
            "torch.autograd.grad) is recorded without values, and asks for one. Let it depend on "
            "shapes alone, or write it without values: torch.where for a branch, a mask for a "
            "selection."
        ) from error
    # Derivatives write through views, of which torchax has copies.
    with traceback.preserve_node_meta():
        pure = functionalize(torch.fx.Interpreter(writing).run, remove="mutations")
        graph = make_fx(pure, tracing_mode="fake")(*like)
    return graph


class _Calling(torch.nn.Module):
    """A module whose forward pass is a method of another one, or a function that takes it first."""

    def __init__(self, module: torch.nn.Module, called: Any) -> None:
        super().__init__()
        self.module = module
        self.called = called

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        # `functional(method=...)` gives a name, an exported program the function that runs it.
        if isinstance(self.called, str):
            return getattr(self.module, self.called)(*args, **kwargs)
        return self.called(self.module, *args, **kwargs)


def _flattened(tensors: dict[str, Any], args: Any, kwargs: Any) -> tuple[list[Any], Any]:
    inputs = {f"module.{name}": tensor for name, tensor in tensors.items()}
    return pytree.tree_flatten((inputs, args, kwargs))


def _split(result: Any) -> tuple[list[torch.Tensor], list[Any]]:
    """Returns the tensors of a result, and what it takes to put them back."""
    leaves, spec = pytree.tree_flatten(result)
    others = [None if is_tensor(leaf) else (leaf,) for leaf in leaves]
    return [leaf for leaf in leaves if is_tensor(leaf)], [others, spec]


def _joined(tensors: list[Any], others: list[Any], spec: Any) -> Any:
    # A tuple holds what is no tensor, since that may be None itself.
    remaining = iter(tensors)
    leaves = [next(remaining) if other is None else other[0] for other in others]
    return pytree.tree_unflatten(leaves, spec)


@contextlib.contextmanager
def _annotated(module: torch.nn.Module) -> Iterator[None]:
    """Notes at each recorded operation the layer that computes it; a derivative's has none."""
    handles, layers = [], []

    def enter(name: str, *_: Any) -> None:
        layers.append(traceback.annotate({"layer": name}))
        layers[-1].__enter__()

    def leave(*_: Any) -> None:
        layers.pop().__exit__(None, None, None)

    for name, layer in module.named_modules():
        if name:
            handles.append(layer.register_forward_pre_hook(functools.partial(enter, name)))
            handles.append(layer.register_forward_hook(leave, always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        while layers:  # an error left them open
            leave()
