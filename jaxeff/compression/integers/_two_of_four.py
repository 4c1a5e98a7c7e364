"""Products with weights of which two of every four inputs are kept, stored without the zeros.

Exported, they are composites `jaxeff.q_sparse`, whose decomposition is the arithmetic below. With
the kept values v of K inputs for each of N outputs, two for each block of four, and their places p
in the blocks,

    y[m, n] = sum_i x[m, 4 (i // 2) + p[i, n]] v[i, n]

Operands, in order:

    x         float32 (M, K); or int8, codes on a grid around zero
    values    int8 (K / 2, N), or float32 for x of float32
    places    uint8 (ceil(K / 8), N): those of values 4i to 4i + 3 in byte i, 2 bits each, the first
              lowest

Attributes: `weight_bits`. The result is float32; of int8 codes it is int32, the same bits on every
machine. Memory is 17 bits a weight in float32 and 5 in int8, of 32 and 8.

References:
    Mishra et al., "Accelerating Sparse Deep Neural Networks", arXiv:2104.08378, section 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxeff.compression.integers._grids import MOST_BITS, reaches, weight_codes, width
from jaxeff.compression.integers._kernels import Kernel
from jaxeff.compression.numerics import Tensor
from jaxeff.compression.quantizers import Uniform
from jaxeff.core import jax_internals as _compat

KEPT, BLOCK = 2, 4
_SHARED, _BITS = 4, 2  # places in a byte, and bits of each


def q_sparse(x: Array, values: Array, places: Array, *, weight_bits: int) -> Array:
    """Multiplies by what is kept of a matrix, with the operands and attributes listed above."""

    def rule(x: Array, values: Array, places: Array) -> tuple[Array]:
        dtype = jnp.int32 if x.dtype == jnp.int8 else jnp.float32
        return (jnp.matmul(x.astype(dtype), filled(values.astype(dtype), places)),)

    attributes = {"weight_bits": weight_bits}
    (y,) = _compat.export_composite(rule, (x, values, places), "jaxeff.q_sparse", attributes)
    return y


def kept_of(w: Array, mask: Array) -> tuple[Array, Array]:
    """Returns the values of a matrix (K, N) that a mask keeps of every block, and their places."""
    depth, columns = w.shape
    apart = (depth // BLOCK, BLOCK, columns)
    # Stable: what is kept comes first, in the order of the inputs.
    places = jnp.argsort(~mask.reshape(apart), axis=1, stable=True)[:, :KEPT]
    values = jnp.take_along_axis(w.reshape(apart), places, 1).reshape(-1, columns)
    # A last byte that isn't full has places of values that there are none of.
    rows = jnp.pad(places.reshape(-1, columns), ((0, -(depth // KEPT) % _SHARED), (0, 0)))
    four = rows.reshape(-1, _SHARED, columns) << (_BITS * jnp.arange(_SHARED))[None, :, None]
    return values, four.sum(1).astype(jnp.uint8)


def filled(values: Array, places: Array) -> Array:
    """Fills what `kept_of` left out with zeros."""
    rows, columns = values.shape
    shifts = _BITS * jnp.arange(_SHARED, dtype=jnp.uint8)
    each = (places[:, None] >> shifts[None, :, None]) & 3
    at = each.reshape(-1, columns)[:rows].reshape(-1, KEPT, 1, columns)
    apart = values.reshape(-1, KEPT, 1, columns)
    # Places of a block differ, so that at most one of the two terms isn't zero.
    inside = at == jnp.arange(BLOCK, dtype=jnp.uint8)[None, None, :, None]
    return jnp.where(inside, apart, jnp.zeros_like(apart)).sum(1).reshape(-1, columns)


@dataclass(frozen=True)
class SparseWeight:
    """How a weight is stored of which two of four inputs are kept.

    Attributes:
        quantizer: The method that keeps them, with a quantizer of the values or None.
        tensor: Description of it.
        bits: Bits of a value.
    """

    quantizer: Any
    tensor: Tensor
    bits: int

    operator = staticmethod(q_sparse)
    most = 1

    @property
    def reach(self) -> int:
        """The largest magnitude of a code."""
        return reaches(self.quantizer.values, self.bits)

    @property
    def by_output(self) -> bool:
        """Whether there are `units`, a number for each output."""
        return self.quantizer.values is not None

    @property
    def attributes(self) -> dict[str, int]:
        """What the operator is told."""
        return {"weight_bits": self.bits}

    def operands(self, of_codes: bool) -> tuple[str, ...]:
        """Names what the operator multiplies by."""
        del of_codes
        return ("codes", "places")

    def made(self, w: Float[Array, "*shape"], kernel: Kernel) -> dict[str, Array]:
        """Computes what is stored: `codes`, their `places` and `units` by output."""
        mask = kernel.lay_weight(self.quantizer.mask(w, self.tensor))
        if not self.by_output:
            values, places = kept_of(kernel.lay_weight(w), mask)
            return {"codes": values, "places": places}
        codes, steps = weight_codes(self.quantizer.values, w, self.tensor)
        values, places = kept_of(kernel.lay_weight(codes), mask)
        units = kernel.lay_weight(jnp.broadcast_to(steps, w.shape))[0]
        return {"codes": values, "places": places, "units": units}


def pattern_of(quantizer: Any) -> tuple[int, int] | None:
    """Returns how many of how many inputs a method keeps, if it keeps as many of every block."""
    found: tuple[int, int] | None = getattr(quantizer, "pattern", None)
    return found


def sparse_weight(
    quantizer: Any, tensor: Tensor, kernel: Kernel, shape: tuple[int, ...]
) -> SparseWeight | str:
    """Describes how a sparse weight is stored; or why it can't be."""
    if pattern_of(quantizer) != (KEPT, BLOCK):
        return "a product with weights of another pattern than 2 of 4"
    # Blocks are neighbours in the weight as it lies, which isn't always how it is multiplied.
    with jax.ensure_compile_time_eval():
        laid = np.asarray(kernel.lay_weight(jnp.asarray(quantizer.blocks(shape, tensor))))
    number = np.arange(kernel.depth)[:, None] // BLOCK
    if not np.array_equal(laid // laid.shape[-1], np.broadcast_to(number, laid.shape)):
        return "a product whose inputs lie in another order than the blocks"
    values = quantizer.values
    if values is None:
        return SparseWeight(quantizer, tensor, 32)
    if not isinstance(values, Uniform) or not values.symmetric:
        return "sparse values on a grid that isn't uniform and centred on zero"
    bits = width(values, f"{tensor.site}/{tensor.name}", most=16)
    # A code of one bit has no zero, which padding needs.
    if not 1 < bits <= MOST_BITS:
        return f"a product with sparse weights of {bits} bits"
    return SparseWeight(quantizer, tensor, bits)
