"""Graphs of PyTorch's operations, run on JAX."""

from __future__ import annotations

import re
from typing import Any

import jax
import torch
from torch.utils import _pytree as pytree


class GraphRun(torch.fx.Interpreter):
    """Runs a graph of PyTorch's operations on JAX, each under the name of its layer."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__(module)
        self.extra_traceback = False

    def run_node(self, n: torch.fx.Node) -> Any:
        scope = layer_scope(_layer(n))
        if n.op != "call_function" or not scope:
            return super().run_node(n)
        with jax.named_scope(scope):
            return super().run_node(n)

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if target in _ASSERTIONS:
            return None
        # What the graph makes itself is made where its inputs are.
        args, kwargs = pytree.tree_map(_on_jax, (args, kwargs))
        if not isinstance(target, torch._ops.OpOverload):
            return super().call_function(target, args, kwargs)
        if function := _FUNCTIONS.get(target.overloadpacket):
            return function(*args, **kwargs)
        if not target._can_decompose():
            return super().call_function(target, args, kwargs)
        # As of a module: PyTorch itself makes of it what torchax knows.
        with torch._C.DisableTorchFunction():
            return super().call_function(target, args, kwargs)


_FUNCTIONS = {
    getattr(torch.ops.aten, name): getattr(torch.nn.functional, name, None) or getattr(torch, name)
    for name in (
        "arange", "empty", "eye", "full", "linspace", "ones", "rand", "randint", "randn", "zeros",
        "linear", "scaled_dot_product_attention", "einsum", "pad", "one_hot", "cdist",
    )
}  # fmt: skip
"""Operations that a module calls by functions, for which torchax has definitions."""


def _on_jax(leaf: Any) -> Any:
    return torch.device("jax") if isinstance(leaf, torch.device) else leaf


_ASSERTIONS = {
    torch.ops.aten._assert_tensor_metadata.default,
    torch.ops.aten._assert_async.msg,
    torch.ops.aten._assert_async.default,
}
"""What a graph states of its inputs' dtypes and layouts, and of values that aren't known."""


def _layer(node: torch.fx.Node) -> str:
    """Returns the path of the layer that an operation is of, of an export or of a recording."""
    stack = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values()]
    return stack[-1] if stack else (node.meta.get("custom") or {}).get("layer", "")


def layer_scope(path: str) -> str:
    """Returns the name that a layer's operations have in a program of JAX."""
    # A layer that is called again is named `layer@1` there.
    return re.sub(r"@\d+", "", path).replace(".", "/")
