"""The grids that PyTorch's quantization-aware training leaves in a module (`prepare_qat`).

A weight or an activation x is on them s (clip(round(x / s) + z, low, high) - z), as
`torch.fake_quantize_per_tensor_affine` has it; slopes are one inside of the range, and zero beyond.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp


@partial(jax.custom_jvp, nondiff_argnums=(3, 4))
def _on_grid(x: Any, scale: Any, zero: Any, low: int, high: int) -> Any:
    # PyTorch multiplies by the inverse, which rounds other halves than a division.
    codes = jnp.clip(jnp.round(x * (1 / scale)) + zero, low, high)
    return ((codes - zero) * scale).astype(x.dtype)


@_on_grid.defjvp
def _through(low: int, high: int, primals: Any, tangents: Any) -> tuple[Any, Any]:
    x, scale, zero = primals
    # Codes before they are clipped tell which entries the range cuts off.
    codes = jnp.round(x * (1 / scale)) + zero
    inside = (low <= codes) & (codes <= high)
    return _on_grid(x, scale, zero, low, high), jnp.where(inside, tangents[0], 0)


def by_tensor(x: Any, scale: Any, zero: Any, low: int, high: int) -> Any:
    """Computes `torch.fake_quantize_per_tensor_affine`."""
    scale, zero = (jnp.asarray(a, jnp.float32).reshape(()) for a in (scale, zero))
    return _on_grid(x, scale, zero, low, high)


def by_channel(x: Any, scale: Any, zero: Any, axis: int, low: int, high: int) -> Any:
    """Computes `torch.fake_quantize_per_channel_affine`."""
    # A scale and a zero point for each entry of one axis, which the others share.
    shape = [-1 if a == axis % x.ndim else 1 for a in range(x.ndim)]
    scale, zero = (jnp.asarray(a, jnp.float32).reshape(shape) for a in (scale, zero))
    return _on_grid(x, scale, zero, low, high)


def observed(number: Callable[[Any, str], Any]) -> Callable[..., Any]:
    """Makes `torch.fused_moving_avg_obs_fake_quant`, for ranges that aren't followed any more.

    Args:
        number: Gives the value of a tensor of one number, for a purpose.
    """

    # 13 parameters: those of PyTorch's function, which calls it.
    def fake_quant(
        x: Any, observes: Any, quantizes: Any, low_seen: Any, high_seen: Any, scale: Any,
        zero: Any, share: float, low: int, high: int, axis: int,
        by_row: bool = False, symmetric: bool = False,
    ) -> Any:  # fmt: skip
        del low_seen, high_seen, share, symmetric
        if number(observes, "an observer"):
            raise NotImplementedError(
                "functional: a module of prepare_qat still follows the ranges of what it computes, "
                "which would change its grids with every call: freeze them before, "
                "model.apply(torch.ao.quantization.disable_observer)."
            )
        # Switched off, as in the first epochs of a training, it hands its input on.
        if not number(quantizes, "a fake quantizer"):
            return x
        scale, zero = scale.jax(), zero.jax()
        on_grid = (
            by_channel(x.jax(), scale, zero, axis, low, high)
            if by_row
            else by_tensor(x.jax(), scale, zero, low, high)
        )
        return x._env.j2t_iso(on_grid)

    return fake_quant
