"""Windows and the inverse of the short-time Fourier transform, which torchax lacks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

WINDOWS = (
    torch.bartlett_window, torch.blackman_window, torch.hamming_window, torch.hann_window,
    torch.kaiser_window,
)  # fmt: skip
"""Functions of PyTorch that make a window of numbers alone."""


def window_by(function: Callable[..., torch.Tensor]) -> Callable[..., jax.Array]:
    """Has PyTorch compute a window, whose entries depend on no input."""

    def window(*args: Any, **kwargs: Any) -> jax.Array:
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            entries = function(*args, **{**kwargs, "device": "cpu"}).detach().numpy()
        with jax.ensure_compile_time_eval():
            return jnp.asarray(entries)

    return window


# 10 parameters: those of PyTorch's function, which calls it.
def inverse_stft(
    spectrum: Any, n_fft: int, hop_length: int | None = None, win_length: int | None = None,
    window: Any = None, center: bool = True, normalized: bool = False, onesided: bool | None = None,
    length: int | None = None, return_complex: bool = False,
) -> Any:  # fmt: skip
    """Computes `torch.istft`: windowed frames are added where they overlap, over their squares.

    Args:
        spectrum: [..., frequencies, frames], complex.
        n_fft: Entries of a frame.
        hop_length: Entries from one frame to the next, a quarter of `n_fft` by default.
        win_length: Entries of the window, which stands in the middle of a frame.
        window: [win_length], or None for ones.
        center: Whether the first frame's middle is the signal's first entry.
        normalized: Whether the spectrum was divided by the root of `n_fft`.
        onesided: Whether only half of the frequencies are given; by default as many as there are.
        length: Entries of the signal; what no frame reaches is zero.
        return_complex: Whether the signal is complex.
    """
    hop = hop_length or n_fft // 4
    width = win_length or n_fft
    shape = jnp.ones(width, jnp.float32) if window is None else window
    # A window that is shorter than a frame stands in its middle.
    before = (n_fft - width) // 2
    shape = jnp.pad(shape, (before, n_fft - width - before))
    frames = jnp.swapaxes(spectrum, -1, -2)
    # The forward transform divided by the same root.
    if normalized:
        frames = frames * np.float32(np.sqrt(n_fft))
    half = onesided if onesided is not None else spectrum.shape[-2] != n_fft
    if return_complex:
        pieces = jnp.fft.ifft(frames, n_fft)
    else:
        pieces = jnp.fft.irfft(frames if half else frames[..., : n_fft // 2 + 1], n_fft)
    signal = _overlapped(pieces * shape, hop)
    weight = _overlapped(jnp.broadcast_to(shape**2, (spectrum.shape[-1], n_fft)), hop)
    # Half a frame was padded at either end, which isn't part of the signal.
    begin = n_fft // 2 if center else 0
    end = signal.shape[-1] - begin
    if length is not None:
        end = min(begin + length, signal.shape[-1])
    result = signal[..., begin:end] / weight[begin:end]
    if length is not None and length > end - begin:
        missing = length - (end - begin)
        result = jnp.pad(result, [(0, 0)] * (result.ndim - 1) + [(0, missing)])
    return result


def _overlapped(pieces: Any, hop: int) -> Any:
    """Adds frames [..., frames, entries], each a hop behind the one before."""
    count, entries = pieces.shape[-2:]
    # Each frame is cut into hops: the k-th hops of all frames are one signal, k hops late.
    hops = -(-entries // hop)
    even = [(0, 0)] * (pieces.ndim - 1) + [(0, hops * hop - entries)]
    parts = jnp.pad(pieces, even).reshape(*pieces.shape[:-1], hops, hop)
    leading = [(0, 0)] * (pieces.ndim - 2)
    late = [jnp.pad(parts[..., k, :], [*leading, (k, hops - 1 - k), (0, 0)]) for k in range(hops)]
    signal = functools.reduce(jnp.add, late).reshape(*pieces.shape[:-2], -1)
    return signal[..., : (count - 1) * hop + entries]
