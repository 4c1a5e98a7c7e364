"""`LogMel`: the features of sound that keyword spotters read, in floating or fixed point.

```python
from jaxeff import nn

assert nn.hann(480).shape == (480,)
assert nn.mel_filters(40, 512).shape == (257, 40)      # [bins, bands]
```

```python
import jax
import jax.numpy as jnp
from jaxeff import nn

audio = jax.random.randint(jax.random.key(0), (2, 1600), -3000, 3000, jnp.int16)
front = nn.LogMel(cepstra=10)                          # 30 ms every 20 ms, 40 bands, 10 cepstra
x = front(audio)                                       # float32 [2, 4, 10]
fixed = jax.jit(front.fixed)(audio)                    # int32, in steps of front.step
assert x.shape == fixed.shape == (2, 4, 10)
assert jnp.abs(fixed.astype(jnp.float32) * front.step - x).max() < 0.1
```

Sharp edges:
    The first frame begins with the first sample; nothing is padded, and what is left of the last
    hop is dropped.
    Energies are of samples as fractions of full scale, and no smaller than `floor`. In fixed point
    spectra have 16 bits: beside a loud tone, bands more than 80 dB below it hold rounding errors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int16, Int32

from jaxeff.core import non_negative, one_of, positive, static_integer, validate
from jaxeff.nn import _whole_numbers as whole

Scale = Literal["htk", "slaney"]

_BREAK, _LINEAR = 1000.0, 200.0 / 3  # Slaney: below 1 kHz a mel is 66.7 Hz
_STEP = np.log(6.4) / 27  # and above, the logarithm of 6.4 has 27 mels


@validate(size=static_integer())
def hann(size: int) -> Float[np.ndarray, " size"]:
    """Makes a periodic Hann window, as `scipy.signal.get_window("hann", size)`.

    Args:
        size: Number of samples.
    """
    return 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / size)


@validate(
    bands=static_integer(),
    size=static_integer(),
    rate=positive,
    low=non_negative,
    high=positive,
    scale=one_of("htk", "slaney"),
)
def mel_filters(
    bands: int,
    size: int,
    rate: float = 16_000.0,
    low: float = 20.0,
    high: float = 4_000.0,
    scale: Scale = "htk",
) -> Float[np.ndarray, "bins bands"]:
    """Makes triangular filters that are evenly spaced on a mel scale, as `librosa.filters.mel`.

    Triangles reach 1 (librosa's `norm=None`). HTK's scale is ``2595 log10(1 + f / 700)``; Slaney's
    (`htk=False` there) is linear below 1 kHz and logarithmic above.

    Args:
        bands: Number of filters.
        size: Length of the Fourier transform; it has ``size // 2 + 1`` bins.
        rate: Samples a second, in Hz.
        low: Lower end of the first filter, in Hz.
        high: Upper end of the last, in Hz.
        scale: `"htk"` or `"slaney"`.

    Raises:
        ValueError: `high` isn't above `low`, or is above half the rate.
    """
    if not low < high <= rate / 2:
        raise ValueError(
            f"mel_filters: low {low:g} Hz has to be below high {high:g} Hz, and that at most half "
            f"the rate, {rate / 2:g} Hz"
        )
    # A filter rises from the centre of the one before and falls to that of the next.
    first, last = _mels(np.array([low, high]), scale)
    edges = _hertz(np.linspace(first, last, bands + 2), scale)
    bins = np.fft.rfftfreq(size, 1 / rate)[:, None]
    rising = (bins - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - bins) / (edges[2:] - edges[1:-1])
    return np.maximum(np.minimum(rising, falling), 0)


def _mels(f: np.ndarray, scale: Scale) -> np.ndarray:
    if scale == "htk":
        return 2595 * np.log10(1 + f / 700)
    above = _BREAK / _LINEAR + np.log(np.maximum(f, _BREAK) / _BREAK) / _STEP
    return np.where(f < _BREAK, f / _LINEAR, above)


def _hertz(mels: np.ndarray, scale: Scale) -> np.ndarray:
    if scale == "htk":
        return 700 * (10 ** (mels / 2595) - 1)
    above = _BREAK * np.exp(_STEP * (mels - _BREAK / _LINEAR))
    return np.where(mels < _BREAK / _LINEAR, mels * _LINEAR, above)


def cosines(bands: int, cepstra: int) -> Float[np.ndarray, "bands cepstra"]:
    """Makes the orthonormal cosine transform of type II, as `scipy.fft.dct(norm="ortho")`."""
    angles = np.pi * (np.arange(bands)[:, None] + 0.5) * np.arange(cepstra) / bands
    table = np.cos(angles) * np.sqrt(2 / bands)
    table[:, 0] /= np.sqrt(2)
    return table


_FULL = 2**15
_FEW = 2
_COSINE = 11  # bits: forty logarithms of 14 bits times these stay below 2^31


@dataclass(frozen=True)
class LogMel:
    """Log-mel spectra of int16 sound, or their cepstra.

    A frame is multiplied by a periodic Hann window and filled up with zeros to a power of two. Its
    energies are summed by triangular mel filters; features are the natural logarithms, or, with
    `cepstra`, the first numbers of their orthonormal cosine transform (MFCC).

    Attributes:
        rate: Samples a second, in Hz.
        window: Samples of a frame.
        hop: Samples from one frame to the next.
        bands: Mel filters.
        cepstra: Cepstral coefficients; None for the logarithms themselves.
        low: Lower end of the first filter, in Hz.
        high: Upper end of the last, in Hz.
        scale: Mel scale, `"htk"` or `"slaney"`.
        floor: Least energy that is told apart, of samples as fractions of full scale.

    Raises:
        ValueError: A size isn't positive, there are more cepstra than bands, or a filter is
            narrower than the spectrum's bins.

    References:
        Davis and Mermelstein, IEEE Trans. ASSP 28 (1980) 357, for cepstra. Slaney, Auditory Toolbox
        (1998), and Young et al., The HTK Book (2002), for the scales.
    """

    rate: int = 16_000
    window: int = 480
    hop: int = 320
    bands: int = 40
    cepstra: int | None = None
    low: float = 20.0
    high: float = 4_000.0
    scale: Scale = "htk"
    floor: float = 1e-6

    def __post_init__(self) -> None:
        """Refuses settings that make no features."""
        for name in ("rate", "window", "hop", "bands"):
            if getattr(self, name) < 1:
                raise ValueError(f"LogMel: {name}={getattr(self, name)} has to be positive")
        if self.cepstra is not None and not 1 <= self.cepstra <= self.bands:
            raise ValueError(
                f"LogMel: cepstra={self.cepstra} of {self.bands} bands; there are from 1 to "
                f"{self.bands}"
            )
        if not self.floor > 0:
            raise ValueError(f"LogMel: floor={self.floor} has to be positive")
        # A filter between two bins would be zero, and its logarithm that of the floor, always.
        if (empty := np.flatnonzero(self.filters.max(0) < 2**-whole.WEIGHT)).size:
            raise ValueError(
                f"LogMel: filter {empty[0]} of {self.bands} lies between the spectrum's bins, "
                f"which are {self.rate / self.size:g} Hz apart; take fewer bands or a longer window"
            )

    @property
    def size(self) -> int:
        """Length of the Fourier transform."""
        return max(whole.power_of_two(self.window), 4)

    @property
    def filters(self) -> Float[np.ndarray, "bins bands"]:
        """The mel filters."""
        return mel_filters(self.bands, self.size, self.rate, self.low, self.high, self.scale)

    @property
    def step(self) -> float:
        """The difference that one in the results of `fixed` stands for."""
        return math.log(2) / 2**whole.LOG

    def frames(self, samples: int) -> int:
        """Returns the number of whole frames in so many samples."""
        return max(1 + (samples - self.window) // self.hop, 0)

    def __call__(self, audio: Int16[Array, "... samples"]) -> Float[Array, "... frames features"]:
        """Computes features in floating point.

        Args:
            audio: int16 `[..., samples]`.

        Raises:
            TypeError: Audio isn't int16.
            ValueError: It is shorter than a frame.
        """
        return self._framed(audio, self._float_frame)

    def fixed(self, audio: Int16[Array, "... samples"]) -> Int32[Array, "... frames features"]:
        """Computes features in int32: the same bits on every processor.

        Args:
            audio: int16 `[..., samples]`.

        Returns:
            Whole numbers; times `step` they are the features, up to rounding.

        Raises:
            TypeError, ValueError: Same as for a call.
        """
        return self._framed(audio, self._fixed_frame)

    def _framed(self, audio: Any, of_frame: Any) -> Array:
        audio = jnp.asarray(audio)
        if audio.dtype != jnp.int16:
            raise TypeError(f"LogMel: audio is {audio.dtype}; it has to be int16, as recorded")
        if (count := self.frames(audio.shape[-1])) == 0:
            raise ValueError(
                f"LogMel: {audio.shape[-1]} samples are fewer than a frame's {self.window}"
            )

        def of_recording(samples: Array) -> Array:
            def at(start: Array) -> Array:
                return of_frame(jax.lax.dynamic_slice(samples, (start,), (self.window,)))

            if count <= _FEW:  # as a stream hands them over: a loop would take more memory
                starts = [i * self.hop for i in range(count)]
                return jnp.stack([of_frame(samples[a : a + self.window]) for a in starts])
            # One after the other: a device has memory for one frame's spectrum.
            return jax.lax.map(at, jnp.arange(count, dtype=jnp.int32) * self.hop)

        flat = audio.reshape(-1, audio.shape[-1])
        features = of_recording(flat[0])[None] if len(flat) == 1 else jax.vmap(of_recording)(flat)
        return features.reshape(*audio.shape[:-1], *features.shape[1:])

    def _float_frame(self, samples: Array) -> Array:
        scaled = jnp.asarray(hann(self.window) / _FULL, jnp.float32)
        spectrum = jnp.fft.rfft(samples.astype(jnp.float32) * scaled, self.size)
        energy = spectrum.real**2 + spectrum.imag**2
        logs = jnp.log(jnp.maximum(energy @ jnp.asarray(self.filters, jnp.float32), self.floor))
        if self.cepstra is None:
            return logs
        return logs @ jnp.asarray(cosines(self.bands, self.cepstra), jnp.float32)

    def _fixed_frame(self, samples: Array) -> Array:
        x = samples.astype(jnp.int32)
        # Quiet frames are lifted to 15 bits first, and lowered in the logarithm again.
        lift = jnp.clip(15 - whole.leading(jnp.abs(x).max()), 0, 15)
        window = np.round(hann(self.window) * _FULL).astype(np.int32)
        windowed = whole.shifted(jnp.clip(x << lift, 1 - _FULL, _FULL - 1) * window, 15)
        padded = jnp.pad(windowed, (0, self.size - self.window))
        # Over half the transform's length: of a window of mean 1/2 at most 2^15.
        re, im = whole.half_spectrum(padded)
        sums = whole.filtered(re * re + im * im, self.filters)
        # Those were sums of 2^-8 times energies of (2 / size 2^15 2^lift)^2.
        scale = whole.WEIGHT + 2 * (15 + 1 - int(math.log2(self.size)))
        logs = whole.log2(*sums) - ((scale + 2 * lift) << whole.LOG)
        logs = jnp.maximum(logs, round(math.log2(self.floor) * 2**whole.LOG))
        if self.cepstra is None:
            return logs
        table = np.round(cosines(self.bands, self.cepstra) * 2**_COSINE).astype(np.int32)
        return whole.shifted(logs @ table, _COSINE)
