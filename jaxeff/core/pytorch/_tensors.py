"""The tensors that modules of PyTorch compute with on JAX, and what is known of their values.

torchax's tensor keeps the size it was made with and forgets what is written behind its back. This
one's size follows its array, and it remembers the operations it was made by where they are of the
model's own numbers: a mask, a stride or a length has a value in a traced function too. At the end
are embeddings that torchax computes of values, which a traced function hasn't.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

try:
    from torchax.tensor import Tensor
    from torchax.view import View, ViewInfo, ViewInfoType
except ImportError as error:
    raise ImportError(
        "functional: a torch.nn.Module is run by torchax: pip install jaxeff[torch]"
    ) from error


class Known:
    """A value that depends on no input and no parameter, computed when it is asked for.

    It is the result `index` of those that `compute` returns.
    """

    def __init__(self, compute: Callable[[], Sequence[jax.Array]], index: int = 0) -> None:
        self._compute = compute
        self._index = index

    def value(self) -> jax.Array:
        with jax.ensure_compile_time_eval():
            return self._compute()[self._index]


UNKNOWN = object()
"""In place of a `Known`: the value depends on an input, a parameter or random numbers."""


class ModelTensor(Tensor):
    """A tensor whose size is its array's, and whose writes are noted for those that share it.

    Attributes:
        known: The value, as a `Known`; `UNKNOWN`, or None where nothing is noted yet.
    """

    known: Any = None

    @property
    def _elem(self) -> jax.Array:
        return self._array

    @_elem.setter
    def _elem(self, array: jax.Array) -> None:
        # Without an array the tensor is only being made: nothing is written.
        if (before := getattr(self, "_array", None)) is not None:
            if array.dtype != before.dtype:
                raise NotImplementedError(
                    f"functional: {self._env.running} writes {array.dtype} into a tensor of "
                    f"{before.dtype}; convert it before, y.to(x.dtype)."
                )
            if array.shape != before.shape:
                _set_size(self, array.shape)
            note_change(self, self._env.running)
        self._array, self.known = array, None

    # torchax's own convert in place, copy what PyTorch shares, and note no change.
    type_as = torch.Tensor.type_as
    flatten = torch.Tensor.flatten

    def detach(self) -> View:  # type: ignore[override]
        return View(self, _Detached(), self._env)

    def cpu(self, memory_format: Any = None) -> ModelTensor:  # type: ignore[override]
        # Where JAX computes is said by its arrays; torchax would make a tensor of PyTorch's.
        return self

    def tolist(self) -> Any:
        return self._env.known_array(self, "Tensor.tolist").tolist()

    def numpy(self) -> Any:  # type: ignore[override]
        return jax.device_get(self._env.known_array(self, "Tensor.numpy"))

    def __setitem__(self, key: Any, value: Any) -> None:
        # Before it is written: what is known of the result follows from what was known before.
        call = self._env.known_call(_with_item, (self, key, value), {})
        # torchax takes no views here.
        without_views = jax.tree.map(_without_view, (key, value), is_leaf=is_tensor)
        super().__setitem__(*without_views)
        self.known = UNKNOWN if call is None else Known(call)


def _with_item(x: ModelTensor, key: Any, value: Any) -> ModelTensor:
    x[key] = value
    return x


def _without_view(leaf: Any) -> Any:
    return leaf.torch() if isinstance(leaf, View) else leaf


def is_tensor(leaf: Any) -> bool:
    """Returns whether a leaf is a tensor, PyTorch's own or one of its subclasses."""
    return isinstance(leaf, torch.Tensor)


def array_of(tensor: torch.Tensor) -> jax.Array:
    """Converts a tensor of PyTorch's own to an array of the same shape."""
    # numpy has no bfloat16; what JAX hasn't (float64 without x64) becomes narrower there.
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        return jnp.asarray(tensor.float().numpy(), jnp.bfloat16)
    return jnp.asarray(tensor.numpy())


def _set_size(tensor: ModelTensor, shape: tuple[int, ...]) -> None:
    """Tells PyTorch the size of a tensor whose array was put in another's place."""
    strides = [1]
    for size in shape[:0:-1]:
        strides.insert(0, strides[0] * size)
    # PyTorch's own operation on the wrapper, past torchax, which would compute it on the array.
    try:
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            torch.Tensor.as_strided_(tensor, shape, strides[-len(shape) :] if shape else ())
    except RuntimeError as error:
        raise NotImplementedError(
            f"functional: {tensor._env.running} gives a tensor of shape {tuple(tensor.shape)} more "
            f"entries, {shape}; make a new one."
        ) from error


class _Detached(ViewInfo):
    """The view that `detach` is: its values, through which can be written, without slopes."""

    def __init__(self) -> None:
        super().__init__(ViewInfoType.NO_OP)

    def transform_tensor(self, jax_array: jax.Array) -> jax.Array:
        return jax.lax.stop_gradient(jax_array)

    def update_tensor(self, new_value: jax.Array, jax_array: jax.Array) -> jax.Array:
        return _overwritten(jax_array, new_value)

    def calculate_output_shape(self, source: jax.Array) -> list[int]:
        return list(source.shape)


@jax.custom_jvp
def _overwritten(before: jax.Array, after: jax.Array) -> jax.Array:
    """Other values for a tensor, of which PyTorch's slopes know nothing."""
    return jax.numpy.broadcast_to(after, before.shape)


@_overwritten.defjvp
def _as_before(primals: Any, tangents: Any) -> tuple[Any, Any]:
    return _overwritten(*primals), tangents[0]


def note_change(tensor: Any, operation: str) -> None:
    """Notes that a tensor was changed in place, and with it what it is a view of.

    A tensor counts its changes, and one that was made of another remembers that one's count
    (`_source`): `check_current` compares the two.
    """
    tensor._changes = getattr(tensor, "_changes", 0) + 1
    while source := getattr(tensor, "_source", None):
        base = source[0]
        base._changes = getattr(base, "_changes", 0) + 1
        base._stale = operation
        source[1] = base._changes
        tensor = base


def check_current(tensor: Any) -> None:
    """Refuses a tensor that PyTorch would see changed through a view, of which torchax has a copy.

    Raises:
        NotImplementedError: It is one.
    """
    tensor = root(tensor)
    base, changes = getattr(tensor, "_source", None) or (None, 0)
    # Changed through what was made of it, or changed after this was made of it.
    operation = getattr(tensor, "_stale", None)
    if operation or (base is not None and getattr(base, "_changes", 0) != changes):
        raise NotImplementedError(
            f"functional: a tensor of shape {tuple(tensor.shape)} is read after "
            f"{operation or 'an operation in place'} changed what it shares memory with (a view, "
            "transpose or chunk): torchax copies these. Write the operation out of place."
        )


def root(tensor: Any) -> Any:
    """Returns the tensor that a view is of, or the tensor itself."""
    while isinstance(tensor, View):
        tensor = tensor.parent
    return tensor


def known(leaf: Any) -> Any:
    """Returns what is known of an argument: a `Known`, `UNKNOWN`, or itself if it is no array."""
    if isinstance(leaf, View):
        source = known(root(leaf))
        if source is UNKNOWN:
            return UNKNOWN
        infos = leaf.get_transformation_chain()

        def viewed() -> list[jax.Array]:
            array = source.value()
            for info in infos:
                array = info.transform_tensor(array)
            return [array]

        return Known(viewed)
    if not isinstance(leaf, Tensor | jax.Array):
        return leaf
    array = leaf.jax() if isinstance(leaf, Tensor) else leaf
    if not isinstance(array, jax.core.Tracer):
        return Known(lambda: [array])
    return getattr(leaf, "known", None) or UNKNOWN


SUM, MEAN, MAX = range(3)
"""PyTorch's numbers of what a bag's entries become."""


def renormalize(weight: Any, indices: Tensor, max_norm: float, norm_type: float) -> Any:
    """Shortens, in place, the rows that are looked up: `torch.embedding_renorm_`."""
    w = weight.jax()
    norms = jnp.linalg.norm(w, ord=norm_type, axis=1, keepdims=True)
    looked_up = jnp.zeros((len(w), 1), bool).at[indices.jax().ravel()].set(True)
    scales = jnp.where(looked_up & (norms > max_norm), max_norm / (norms + 1e-7), 1)
    weight.copy_(weight._env.j2t_iso(w * scales.astype(w.dtype)))
    return weight


# 9 parameters: those of PyTorch's function, which calls it.
def embedding_bag(
    weight: Any, indices: Any, offsets: Any, scale_grad_by_freq: bool = False, mode: int = SUM,
    sparse: bool = False, per_sample_weights: Any = None, include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Any, Any, Any, Any]:  # fmt: skip
    """Adds, averages or maximizes the rows of each bag: `torch.embedding_bag`'s first result.

    Bags of one size, as those of a matrix of indices, are an axis; others are told by their
    offsets, which may be traced.
    """
    environment = weight._env
    w, index = weight.jax(), indices.jax()
    size = _even_size(offsets, len(index))
    begins = offsets.jax()[: -1 if include_last_offset else None]
    rows = jnp.take(w, index, axis=0)
    counted = jnp.ones(index.shape, bool)
    if padding_idx is not None and padding_idx >= 0:
        counted = index != padding_idx
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.jax()[:, None]
    # Entries of the padding add nothing, and are no maximum.
    filled = jnp.where(counted[:, None], rows, -jnp.inf if mode == MAX else 0)
    bags = len(begins)
    if size and not include_last_offset:
        stacked = filled.reshape(bags, size, -1)
        pooled = stacked.max(1) if mode == MAX else stacked.sum(1)
        counts = counted.reshape(bags, size).sum(1)
    else:
        bag = jnp.searchsorted(begins, jnp.arange(len(index)), side="right") - 1
        if include_last_offset:  # what is behind the last offset is in no bag
            bag = jnp.where(jnp.arange(len(index)) < offsets.jax()[-1], bag, bags)
        by_bag = jax.ops.segment_max if mode == MAX else jax.ops.segment_sum
        pooled = by_bag(filled, bag, bags)
        counts = jax.ops.segment_sum(counted.astype(index.dtype), bag, bags)
    if mode == MEAN:
        pooled = pooled / jnp.maximum(counts, 1)[:, None].astype(pooled.dtype)
    if mode == MAX:
        pooled = jnp.where(counts[:, None] > 0, pooled, 0)
    return environment.j2t_iso((pooled, begins, counts, begins))


def _even_size(offsets: Any, length: int) -> int | None:
    """Returns how many entries each bag has, if it is known and the same."""
    value = known(offsets)
    if not isinstance(value, Known):
        return None
    sizes = np.diff(np.append(np.asarray(value.value()), length))
    return int(sizes[0]) if len(sizes) and sizes[0] and (sizes == sizes[0]).all() else None
