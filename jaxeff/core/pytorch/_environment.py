"""The environment that modules of PyTorch run in: torchax's, with what it lacks.

Operations in place write through views of slices, and are refused where a copy would be read that
PyTorch would see changed. Sums and batch norms have no factors that compute nothing; means of
windows count what PyTorch counts.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import torch
from torchax.interop import JittableModule as JittableModule
from torchax.ops.op_base import InplaceOp
from torchax.ops.ops_registry import all_aten_ops, all_torch_functions
from torchax.tensor import Environment as Environment
from torchax.tensor import OperatorNotFound as OperatorNotFound
from torchax.tensor import Tensor
from torchax.view import View

from jaxeff.core.pytorch import _grids, _recurrent, _signals, _tensors
from jaxeff.core.pytorch._tensors import (
    UNKNOWN,
    Known,
    ModelTensor,
    array_of,
    check_current,
    is_tensor,
    known,
)


class TransformsItself(Exception):
    """A module differentiates or vectorizes what it computes, on tensors that aren't PyTorch's."""


class _Writing(Environment):
    """An environment in which operations in place write through views, as `b[2:4].zero_()` does.

    torchax knows slices as views, and of them some operations; of the others it would compute a
    result that nobody reads. Other views (`view`, `transpose`, `chunk`) it copies: what PyTorch
    would see changed is refused when it is read.

    Where a traced function asks for a value (`item`, `if mask.all()`), it is computed of the
    model's own numbers, or refused.

    Attributes:
        running: The operation that is under way, for messages.
    """

    running: str = "an operation in place"

    def j2t_iso(self, jaxarray: Any) -> Any:
        # A subclass's tensors, for which torchax has no setting.
        return jax.tree.map(
            lambda leaf: ModelTensor(leaf, self) if isinstance(leaf, jax.Array) else leaf, jaxarray
        )

    def _to_copy(self, the_tensor: Any, new_dtype: Any, new_device: Any) -> Any:
        # Where JAX computes is said by its arrays. Wider numbers it has only if it is told so, and
        # would warn of each conversion.
        if jax.dtypes.canonicalize_dtype(np.int64) == np.int32:
            new_dtype = _NARROWER.get(new_dtype, new_dtype)
        device = getattr(new_device, "type", new_device)
        return super()._to_copy(the_tensor, new_dtype, None if device == "cpu" else new_device)

    def dispatch(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        args, kwargs = args or (), kwargs or {}
        # Inside of `torch.func.grad` or `vmap` tensors are wrapped by PyTorch, not by torchax.
        if func is torch.autograd.grad or torch._C._functorch.peek_interpreter_stack() is not None:
            raise TransformsItself
        leaves = jax.tree.leaves((args, kwargs), is_leaf=is_tensor)
        for leaf in leaves:
            check_current(leaf)
        self.running = getattr(func, "__name__", str(func))
        if args and _is_plain(args[0]) and _writes(func):
            raise NotImplementedError(
                f"functional: {func} writes into a tensor that the module keeps beside its "
                "parameters and buffers: register it, self.register_buffer(name, tensor)."
            )
        # Where all are PyTorch's own, as the sizes of a packed sequence are, PyTorch computes.
        mixed = any(is_tensor(leaf) and not _is_plain(leaf) for leaf in leaves)
        if mixed and getattr(func, "overloadpacket", func) not in _OF_LENGTHS:
            args, kwargs = jax.tree.map(self._constant, (args, kwargs), is_leaf=is_tensor)
        call = self.known_call(func, args, kwargs)
        try:
            result = self._dispatched(func, types, args, kwargs)
        except _ASKS_FOR_VALUES as error:
            return self._of_values(func, types, args, kwargs, call, error)
        result = jax.tree.map(self._followed, result, is_leaf=is_tensor)
        for i, part in enumerate(jax.tree.leaves(result, is_leaf=is_tensor)):
            if isinstance(part, ModelTensor) and part.known is None:
                part.known = UNKNOWN if call is None else Known(call, i)
        return result

    def _constant(self, leaf: Any) -> Any:
        """Converts a tensor that is neither parameter nor buffer: in a list, global, of NumPy."""
        if not _is_plain(leaf):
            return leaf
        with (
            torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction(),
            jax.ensure_compile_time_eval(),
        ):  # fmt: skip
            array = array_of(leaf)
        tensor = self.j2t_iso(array)
        tensor.known = Known(lambda: [array])
        return tensor

    def _followed(self, part: Any) -> Any:
        """Makes of a tensor that torchax constructed one whose writes are followed."""
        return ModelTensor(part.jax(), self, part.requires_grad) if type(part) is Tensor else part

    def _dispatched(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        first = args[0] if args else None
        if func is torch.Tensor.__getitem__ and isinstance(first, View) and _gathers(args[1]):
            first = first.torch()
            args = (first, *args[1:])
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
            if written.shape != first.shape:
                raise NotImplementedError(
                    f"functional: {func} gives a slice of shape {tuple(first.shape)} another, "
                    f"{tuple(written.shape)}, in place. Write the operation out of place."
                )
            first.update(written.jax())
            return result
        return super().dispatch(func, types, args, kwargs)

    def known_call(self, func: Any, args: Any, kwargs: Any) -> Callable[[], list[jax.Array]] | None:
        """Prepares an operation's results where all it takes is known; else there are none."""
        if func in (torch.rand, torch.randn, torch.randint) or self._draws(func):
            return None
        leaves, tree = jax.tree.flatten((args, kwargs), is_leaf=is_tensor)
        arguments = [known(leaf) for leaf in leaves]
        if any(argument is UNKNOWN for argument in arguments):
            return None

        @functools.cache
        def results() -> list[jax.Array]:
            tensors = [
                self.j2t_iso(argument.value()) if isinstance(argument, Known) else argument
                for argument in arguments
            ]
            with jax.ensure_compile_time_eval(), self:
                result = func(*(call := jax.tree.unflatten(tree, tensors))[0], **call[1])
            return jax.tree.leaves(self.t2j_iso(result), is_leaf=is_tensor)

        return results

    def _draws(self, func: Any) -> bool:
        try:
            operation = self._get_op_or_decomp(func)
        except OperatorNotFound:
            return False
        return bool(operation.needs_env)

    def known_array(self, tensor: Tensor, operation: str) -> jax.Array:
        """Returns an array that has values.

        Raises:
            NotImplementedError: It depends on what is traced.
        """
        value = known(tensor)
        if value is UNKNOWN:
            raise NotImplementedError(_asked(operation, tensor))
        return value.value()

    def _of_values(
        self, func: Any, types: Any, args: Any, kwargs: Any, call: Any, error: Exception
    ) -> Any:
        """Computes an operation that a trace can't, of the values it asks for."""
        if call is not None:
            results = call()
            return self.j2t_iso(results[0]) if len(results) == 1 else tuple(self.j2t_iso(results))
        leaves, tree = jax.tree.flatten((args, kwargs), is_leaf=is_tensor)
        values = [known(leaf) for leaf in leaves]
        if any(isinstance(value, Known) for value in values):
            tensors = [
                self.j2t_iso(value.value()) if isinstance(value, Known) else leaf
                for leaf, value in zip(leaves, values, strict=True)
            ]
            args, kwargs = jax.tree.unflatten(tree, tensors)
            try:
                return self._dispatched(func, types, args, kwargs)
            except _ASKS_FOR_VALUES:
                pass
        unknown = [leaf for leaf, value in zip(leaves, values, strict=True) if value is UNKNOWN]
        raise NotImplementedError(_asked(str(func), unknown[0])) from error


_NARROWER = {
    torch.int64: torch.int32, torch.uint64: torch.uint32,
    torch.float64: torch.float32, torch.complex128: torch.complex64,
}  # fmt: skip
"""Dtypes of PyTorch, and what JAX has in their place."""


def _asked(operation: str, tensor: Any) -> str:
    return (
        f"functional: {operation} asks for the values of a tensor of shape {tuple(tensor.shape)} "
        "that depends on inputs, parameters or random numbers, which have none in a traced "
        "function (jax.jit, and every transform). Let it depend on shapes and the module's own "
        "numbers, give it as a Python number or an array that isn't traced, or write it without "
        "values: torch.where for a branch, a mask for a selection, is_causal=True for a "
        "transformer's causal mask."
    )


_ASKS_FOR_VALUES = (
    jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError, jax.errors.NonConcreteBooleanIndexError,
)  # fmt: skip


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


_OF_LENGTHS = {
    torch.ops.aten._pack_padded_sequence, torch._VF._pad_packed_sequence,
    *(getattr(torch, name) for name in _recurrent.CELLS),
}  # fmt: skip
"""Operations that take numbers as a tensor of PyTorch's own."""


def _gathers(key: Any) -> bool:
    """Returns whether an index is of positions or a mask, whose result is no view."""
    parts = key if isinstance(key, tuple) else (key,)
    return any(isinstance(part, list) or is_tensor(part) for part in parts)


def _is_plain(leaf: Any) -> bool:
    return type(leaf) in (torch.Tensor, torch.nn.Parameter)


def _writes(func: Any) -> bool:
    """Returns whether an operation of PyTorch changes its first argument."""
    if isinstance(func, torch._ops.OpOverload):
        arguments = func._schema.arguments
        written = arguments[0].alias_info if arguments else None
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

    def on_tensors(on_arrays: Callable[..., Any]) -> Callable[..., Any]:
        def operation(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = environment.t2j_iso((args, kwargs))
            return environment.j2t_iso(on_arrays(*args, **kwargs))

        return operation

    def replaced(op: Any, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        on_arrays = make({**all_aten_ops, **all_torch_functions}[op].func)
        environment.override_op_definition(op, on_tensors(on_arrays))

    for op in (aten.add.Tensor, aten.add.Scalar, aten.sub.Tensor, aten.sub.Scalar):
        replaced(op, _without_factor)

    replaced(aten.convolution, _with_groups_apart)
    for pool in (aten.avg_pool1d, aten.avg_pool2d, aten.avg_pool3d):
        replaced(pool, _averaged)
    for op in (aten.native_batch_norm, aten._native_batch_norm_legit_no_training):
        replaced(op, _with_one_factor)
    for op in (aten.addmm, aten.addmv):
        replaced(op, _without_factors)
    for function, names in _ARGUMENTS.items():
        replaced(function, _in_order(names))
    # What PyTorch's own decompositions call: only the function of the same name crops, by paddings
    # below zero, and knows all of PyTorch's modes.
    replaced(aten.pad, lambda _: all_torch_functions[torch.nn.functional.pad].func)
    for function in _signals.WINDOWS:
        environment.override_op_definition(function, on_tensors(_signals.window_by(function)))
    environment.override_op_definition(torch.istft, on_tensors(_signals.inverse_stft))
    for function, on_grid in (
        (torch.fake_quantize_per_tensor_affine, on_tensors(_grids.by_tensor)),
        (torch.fake_quantize_per_channel_affine, on_tensors(_grids.by_channel)),
        (torch.fused_moving_avg_obs_fake_quant, _grids.observed(environment.known_array)),
    ):
        environment.override_op_definition(function, on_grid)
    # torchax adds a mask in place to one of rows and columns, where a mask of heads doesn't fit.
    for function in (torch.nn.functional, torch.ops.aten):
        environment.override_op_definition(function.scaled_dot_product_attention, _attention)
    _loop_as_pytorch(environment, on_tensors)
    _write_as_pytorch(environment)
    return environment


# 8 parameters: they are PyTorch's.
def _attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Computes `scaled_dot_product_attention` as its documentation writes it."""
    if enable_gqa:
        key, value = (x.repeat_interleave(query.size(-3) // x.size(-3), -3) for x in (key, value))
    weight = query @ key.transpose(-2, -1) * (query.size(-1) ** -0.5 if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(weight.shape[-2:], dtype=torch.bool, device=query.device).tril()
    if attn_mask is None:
        shares = torch.softmax(weight, -1)
    else:
        hidden = attn_mask.dtype == torch.bool
        weight = weight.masked_fill(~attn_mask, -math.inf) if hidden else weight + attn_mask
        shares = torch.softmax(weight, -1)
        if not is_causal:
            # A row that sees nothing is zero, as `_safe_softmax` makes it.
            blind = (weight == -math.inf).all(-1, keepdim=True)
            shares = shares.masked_fill(blind, 0.0)
    if dropout_p > 0:
        shares = torch.dropout(shares, dropout_p, train=True)
    return shares @ value


def _loop_as_pytorch(environment: Any, on_tensors: Callable[..., Any]) -> None:
    """Has recurrent layers be loops, over packed sequences too, whose lengths are numbers."""
    aten = torch.ops.aten
    unknown = functools.partial(OperatorNotFound, "a recurrent layer of this kind")

    def layers(function: Callable[..., Any]) -> Callable[..., Any]:
        def operation(x: Any, sizes: Any, *args: Any) -> Any:
            packed = type(sizes) is torch.Tensor
            return function(x, sizes.numpy() if packed else sizes, *args)

        return operation

    def packed(padded: Any, lengths: Any, batch_first: bool) -> Any:
        # A list of lengths has become a tensor of PyTorch's own.
        plain = type(lengths) is torch.Tensor
        known = lengths if plain else environment.known_array(lengths, "pack_padded_sequence")
        lengths = np.asarray(known)
        rows, sizes = _recurrent.pack(padded.jax(), lengths, batch_first)
        # PyTorch wants sizes to be numbers on the CPU, which they are as a tensor of its own.
        with torch._C.DisableTorchFunction():
            return environment.j2t_iso(rows), torch.from_numpy(sizes)

    # By the function's name: its decomposition asks PyTorch for 64-bit numbers.
    def padded(rows: Any, sizes: Any, batch_first: bool, value: float, total: int) -> Any:
        y, lengths = _recurrent.pad(rows.jax(), sizes.numpy(), batch_first, value, total)
        # Numbers in a traced function too: a model may ask for them.
        with jax.ensure_compile_time_eval():
            return environment.j2t_iso((y, jax.numpy.asarray(lengths)))

    for name, cell in _recurrent.CELLS.items():
        function = on_tensors(_recurrent.recurrent(cell, unknown))
        environment.override_op_definition(getattr(torch, name), layers(function))
    environment.override_op_definition(aten._pack_padded_sequence, packed)
    environment.override_op_definition(torch._VF._pad_packed_sequence, padded)


def _without_factor(f: Callable[..., Any]) -> Callable[..., Any]:
    """Leaves a factor of one out of a sum."""
    return lambda x, y, alpha=1: f(x, y, alpha=_One() if alpha == 1 else alpha)


def _without_factors(f: Callable[..., Any]) -> Callable[..., Any]:
    """Leaves factors of one out of the sum of a bias and a product."""

    def on_arrays(bias: Any, x: Any, y: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
        plain = beta == 1 == alpha
        return bias + x @ y if plain else f(bias, x, y, beta=beta, alpha=alpha)

    return on_arrays


def _in_order(names: Sequence[str]) -> Callable[..., Any]:
    """Lets arguments that torchax calls otherwise be given by PyTorch's names."""

    def make(f: Callable[..., Any]) -> Callable[..., Any]:
        def by_place(*args: Any, **kwargs: Any) -> Any:
            rest = list(names[len(args) :])
            while rest and rest[0] in kwargs:
                args = (*args, kwargs.pop(rest.pop(0)))
            return f(*args, **kwargs)

        return by_place

    return make


def _with_groups_apart(f: Callable[..., Any]) -> Callable[..., Any]:
    """Has weights of grouped transposed convolutions in the order of PyTorch."""

    def convolution(x: Any, w: Any, *args: Any) -> Any:
        transposed, _, groups = args[-3:]
        if transposed and 1 < groups < w.shape[0]:
            # torchax reshapes [inputs, outputs a group] to [inputs a group, outputs]: groups
            # have to go from the one axis to the other.
            by_group = w.reshape(groups, w.shape[0] // groups, *w.shape[1:])
            w = jax.numpy.swapaxes(by_group, 0, 1).reshape(w.shape)
        return f(x, w, *args)

    return convolution


def _with_one_factor(f: Callable[..., Any]) -> Callable[..., Any]:
    """Has a batch normalization multiply each entry once."""

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


def _averaged(f: Callable[..., Any]) -> Callable[..., Any]:
    """Has means of windows that reach beyond an image's padding (`ceil_mode`) count as PyTorch's.

    torchax counts the entries of such a window right where it reaches beyond on all axes alone.
    """

    def average(
        x: Any,
        size: Sequence[int],
        strides: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Any:
        pads = [*padding] if len(padding) == len(size) else [*padding] * len(size)
        divisor: Any = divisor_override
        if ceil_mode and count_include_pad and divisor is None:
            axes = zip(x.shape[-len(size) :], size, strides or size, pads, strict=True)
            counts = functools.reduce(np.multiply.outer, [_entries(*axis) for axis in axes])
            divisor = counts if (counts < math.prod(size)).any() else None
        return f(x, size, strides, pads, ceil_mode, count_include_pad, divisor)

    return average


def _entries(length: int, window: int, stride: int, padding: int) -> np.ndarray:
    """Counts what each window of an axis has of the array and its padding, in `ceil_mode`.

    The last window ends at the padding's end or beyond, and begins before that padding.
    """
    end = length + padding
    starts = np.arange(-padding, min(length, end - window + stride), stride)
    return np.minimum(starts + window, end) - starts


def _write_as_pytorch(environment: Environment) -> None:
    """Has operations in place write what PyTorch writes, and says what can't be written."""
    aten = torch.ops.aten

    def copy(x: Any, y: Any, non_blocking: bool = False) -> Any:
        y = y if isinstance(y, Tensor | View) else environment.to_xla(y)
        values = y.jax().astype(x.jax().dtype)
        if isinstance(x, View):
            x.update(values)
        else:
            x._elem = jax.numpy.broadcast_to(values, x.shape)
        return x

    def detach(x: Any) -> Any:
        return ModelTensor.detach(x)

    def normal(x: Any, mean: float = 0.0, std: float = 1.0, *, generator: Any = None) -> Any:
        return x.copy_(torch.randn_like(x) * std + mean)

    def refused(x: Any, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(
            f"functional: {environment.running} gives a tensor of shape {tuple(x.shape)} other "  # type: ignore[attr-defined]
            "entries in place. Make a new tensor."
        )

    environment.override_op_definition(aten.copy_, copy, is_view_op=True)
    environment.override_op_definition(aten.detach, detach, is_view_op=True)
    environment.override_op_definition(aten.normal_, normal)
    for op in (torch.Tensor.resize_, aten.resize_, aten.resize_as_, aten.set_, aten.as_strided_):
        environment.override_op_definition(op, refused, is_view_op=True)
    for name in ("transpose", "t", "unsqueeze", "squeeze"):
        shaped = InplaceOp(getattr(aten, name), replace=True)
        environment.override_op_definition(getattr(aten, f"{name}_"), shaped)
    environment.override_op_definition(aten.embedding_renorm_, _tensors.renormalize)
    environment.override_op_definition(aten._embedding_bag, _tensors.embedding_bag)
    environment.override_op_definition(aten._embedding_bag_forward_only, _tensors.embedding_bag)
    environment.override_op_definition(aten._is_all_true, _asserted)
    environment.override_op_definition(aten._is_any_true, torch.any)


def _asserted(condition: Any) -> Any:
    """Evaluates what PyTorch asserts; of traced values a function can assert nothing."""
    if known(condition) is not UNKNOWN:
        return torch.all(condition)
    with jax.ensure_compile_time_eval():
        return condition._env.j2t_iso(jax.numpy.asarray(True))


_ARGUMENTS: dict[Any, tuple[str, ...]] = {
    torch.nn.functional.linear: ("input", "weight"), torch.nn.functional.pad: ("input",),
    torch.corrcoef: ("input",),
    torch.linalg.det: ("A",), torch.linalg.slogdet: ("A",), torch.linalg.solve: ("A", "B"),
    torch.linalg.svd: ("A",),
}  # fmt: skip
"""PyTorch's names of first arguments that torchax has other names for."""
