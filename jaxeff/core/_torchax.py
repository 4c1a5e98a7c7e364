"""The environment that modules of PyTorch run in: torchax's, with what it lacks.

Operations in place write through views of slices, and are refused where a copy would be read that
PyTorch would see changed. Sums and batch norms have no factors that compute nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import torch

try:
    from torchax.interop import JittableModule as JittableModule
    from torchax.ops.ops_registry import all_aten_ops, all_torch_functions
    from torchax.tensor import Environment, Tensor
    from torchax.view import View
except ImportError as error:
    raise ImportError(
        "functional: a torch.nn.Module is run by torchax: pip install jaxeff[torch]"
    ) from error


class _Writing(Environment):
    """An environment in which operations in place write through views, as `b[2:4].zero_()` does.

    torchax knows slices as views, and of them some operations; of the others it would compute a
    result that nobody reads. Other views (`view`, `transpose`, `chunk`) it copies: what PyTorch
    would see changed is refused when it is read.
    """

    def dispatch(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        for tensor in jax.tree.leaves(args, is_leaf=is_tensor):
            check_current(tensor)
        first = args[0] if args else None
        if not _writes(func):
            result = super().dispatch(func, types, args, kwargs)
            if isinstance(first, Tensor) and _is_alias(func):
                # One for all parts of a chunk: what changes one leaves the others as they are.
                source = [first, getattr(first, "_changes", 0)]
                for part in jax.tree.leaves(result, is_leaf=is_tensor):
                    if isinstance(part, Tensor) and part is not first:
                        part._source = source
            return result
        if isinstance(first, View) and not self._get_op_or_decomp(func).is_view_op:
            result, written = first, first.torch()
            super().dispatch(func, types, (written, *args[1:]), kwargs)
            first.update(written.jax())
        else:
            result = super().dispatch(func, types, args, kwargs)
        while isinstance(first, View):
            first = first.parent
        _note_change(first, func)
        return result


def is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor)


def _note_change(tensor: Any, func: Any) -> None:
    """Notes that a tensor was changed in place, and with it what it is a view of."""
    tensor._changes = getattr(tensor, "_changes", 0) + 1
    while source := getattr(tensor, "_source", None):
        base = source[0]
        base._changes = getattr(base, "_changes", 0) + 1
        base._stale = str(func)
        source[1] = base._changes
        tensor = base


def check_current(tensor: Any) -> None:
    """Refuses a tensor that PyTorch would see changed through a view, of which torchax has a copy.

    Raises:
        NotImplementedError: It is one.
    """
    while isinstance(tensor, View):
        tensor = tensor.parent
    base, changes = getattr(tensor, "_source", None) or (None, 0)
    if (op := getattr(tensor, "_stale", None)) or (
        base is not None and getattr(base, "_changes", 0) != changes
    ):
        raise NotImplementedError(
            f"functional: a tensor of shape {tuple(tensor.shape)} is read after "
            f"{op or 'an operation in place'} changed what it shares memory with (a view, "
            "transpose or chunk): torchax copies these. Write the operation out of place."
        )


def _is_alias(func: Any) -> bool:
    """Returns whether the result of an operation of PyTorch is always a view of its argument."""
    if not isinstance(func, torch._ops.OpOverload) or not func._schema.returns:
        return False
    alias = func._schema.returns[0].alias_info
    return alias is not None and func.overloadpacket not in _PERHAPS_COPIES


_PERHAPS_COPIES = {
    getattr(torch.ops.aten, name)
    for name in ("contiguous", "reshape", "to", "flatten", "lift_fresh")
}
"""Operations whose result may be a copy in PyTorch, or their argument itself."""


def _writes(func: Any) -> bool:
    """Returns whether an operation of PyTorch changes its first argument."""
    if isinstance(func, torch._ops.OpOverload):
        written = func._schema.arguments[0].alias_info
        return written is not None and written.is_write
    return False


class _One:
    """A factor of one, times which a program computes nothing."""

    def __rmul__(self, other: Any) -> Any:
        return other


def pytorch_environment() -> Environment:
    """Makes an environment of torchax in which sums have no factors of one.

    PyTorch's sum is `x + alpha * y`, and its dense layer `beta * b + alpha * (x @ w)`. torchax
    writes the products down, which would stand between layers and what can be fused with them.
    Functions whose arguments torchax calls otherwise take PyTorch's names too.
    """
    environment = _Writing()
    aten = torch.ops.aten

    def replaced(op: Any, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        on_arrays = make({**all_aten_ops, **all_torch_functions}[op].func)

        def on_tensors(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = environment.t2j_iso((args, kwargs))
            return environment.j2t_iso(on_arrays(*args, **kwargs))

        environment.override_op_definition(op, on_tensors)

    def without_factor(f: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x, y, alpha=1: f(x, y, alpha=_One() if alpha == 1 else alpha)

    def without_factors(f: Callable[..., Any]) -> Callable[..., Any]:
        def on_arrays(bias: Any, x: Any, y: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
            plain = beta == 1 == alpha
            return bias + x @ y if plain else f(bias, x, y, beta=beta, alpha=alpha)

        return on_arrays

    for op in (aten.add.Tensor, aten.add.Scalar, aten.sub.Tensor, aten.sub.Scalar):
        replaced(op, without_factor)

    def in_order(names: Sequence[str]) -> Callable[..., Any]:
        def make(f: Callable[..., Any]) -> Callable[..., Any]:
            def by_place(*args: Any, **kwargs: Any) -> Any:
                rest = list(names[len(args) :])
                while rest and rest[0] in kwargs:
                    args = (*args, kwargs.pop(rest.pop(0)))
                return f(*args, **kwargs)

            return by_place

        return make

    def with_groups_apart(f: Callable[..., Any]) -> Callable[..., Any]:
        def convolution(x: Any, w: Any, *args: Any) -> Any:
            transposed, _, groups = args[-3:]
            if transposed and 1 < groups < w.shape[0]:
                # torchax reshapes [inputs, outputs a group] to [inputs a group, outputs]: groups
                # have to go from the one axis to the other.
                by_group = w.reshape(groups, w.shape[0] // groups, *w.shape[1:])
                w = jax.numpy.swapaxes(by_group, 0, 1).reshape(w.shape)
            return f(x, w, *args)

        return convolution

    def with_one_factor(f: Callable[..., Any]) -> Callable[..., Any]:
        def batch_norm(x: Any, weight: Any, bias: Any, mean: Any, var: Any, *args: Any) -> Any:
            *training, _, eps = args
            if any(training) or mean is None or weight is None:
                return f(x, weight, bias, mean, var, *args)
            # torchax multiplies each entry twice, by the inverse deviation and by the weight.
            channels = [1, -1, *[1] * (x.ndim - 2)]
            mean, var, weight = (a.reshape(channels) for a in (mean, var, weight))
            y = (x - mean) * (jax.lax.rsqrt(var + eps) * weight)
            nothing = jax.numpy.zeros(0, x.dtype)
            return (y if bias is None else y + bias.reshape(channels)), nothing, nothing

        return batch_norm

    replaced(aten.convolution, with_groups_apart)
    for op in (aten.native_batch_norm, aten._native_batch_norm_legit_no_training):
        replaced(op, with_one_factor)
    for op in (aten.addmm, aten.addmv):
        replaced(op, without_factors)
    for function, names in _ARGUMENTS.items():
        replaced(function, in_order(names))
    # What PyTorch's own decompositions call: only the function of the same name crops, by paddings
    # below zero, and knows all of PyTorch's modes.
    replaced(aten.pad, lambda _: all_torch_functions[torch.nn.functional.pad].func)
    return environment


_ARGUMENTS: dict[Any, tuple[str, ...]] = {
    torch.nn.functional.linear: ("input", "weight"), torch.nn.functional.pad: ("input",),
    torch.corrcoef: ("input",),
    torch.linalg.det: ("A",), torch.linalg.slogdet: ("A",), torch.linalg.solve: ("A", "B"),
    torch.linalg.svd: ("A",),
}  # fmt: skip
"""PyTorch's names of first arguments that torchax has other names for."""
