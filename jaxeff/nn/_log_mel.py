"""Features of sound: `LogMel` as a function of a network, and `log_mel` of recordings on the host.

```python
import jax

from jaxeff import data, nn

assert nn.hann(480).shape == (480,)
assert nn.mel_filters(40, 512).shape == (257, 40)      # [bins, bands]
sounds = data.tones(jax.random.key(0), 4)
assert nn.log_mel(sounds).shape == (4, 32, 32)         # [recordings, frames, bands]
```

```python
import jax.numpy as jnp

audio = jax.random.randint(jax.random.key(0), (2, 1600), -3000, 3000, jnp.int16)
front = nn.LogMel(cepstra=10)                          # 30 ms every 20 ms, 40 bands, 10 cepstra
x = front(audio)                                       # float32 [2, 4, 10]
fixed = jax.jit(front.fixed)(audio)                    # int32, in steps of front.step
assert x.shape == fixed.shape == (2, 4, 10)
assert jnp.abs(fixed.astype(jnp.float32) * front.step - x).max() < 0.1
```
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int16, Int32

from jaxeff.core import non_negative, one_of, positive, real_array, static_integer, validate

TWIDDLE = 14
"""Bits of the fractions of sines: two products of 17-bit numbers with them stay below 2^31."""
LOW = 15
"""Bits of the lower part of an energy."""
WEIGHT = 8
"""Bits of a filter's weights."""
LOG = 8
"""Bits of the fraction of a logarithm, which is to base 2: a step is .0027 of its natural unit."""
TABLE = 7
"""Bits of a mantissa that a table of logarithms is looked up by; the rest is interpolated."""


def shifted(x: Array, bits: int) -> Array:
    """Divides by a power of two, to the nearest whole number, halves up."""
    return (x + (1 << (bits - 1))) >> bits


def leading(x: Array) -> Array:
    """Counts the bits of non-negative numbers."""
    return 32 - jax.lax.clz(x)


def half_spectrum(x: Int16[Array, " size"]) -> tuple[Int32[Array, " bins"], Int32[Array, " bins"]]:
    """Computes the Fourier transform of real numbers, over half their number.

    Pairs of numbers are one complex number each, so that the transform has half the length; each
    of its passes halves what it adds, so that nothing grows.

    `x` is `[size]`, times a Hann window, size a power of two. Returns real and imaginary parts of
    `[size // 2 + 1]` bins, times 2 / size.
    """
    half = len(x) // 2
    # Of half circles: what the pairs are turned by at the end, and passes by every second.
    turns = _fractions(np.pi * np.arange(half + 1) / half)
    re, im, order = _transformed(x[0::2], x[1::2], turns[::2])
    # Z(half) is Z(0), and Z(-k) is Z(half - k).
    k, back = np.arange(half + 1) % half, -np.arange(half + 1) % half
    (ar, br), (ai, bi) = ([_looked_up(z, order[at]) for at in (k, back)] for z in (re, im))
    # X = (E - i W O) / 2 with E = Z(k) + Z*(-k), O = Z(k) - Z*(-k), which are below 2^17.
    cos, sin = turns.T.astype(np.int32)
    pr, pi = _turned(ai + bi, br - ar, cos, sin, TWIDDLE)
    return shifted(ar + br + pr, 1), shifted(ai - bi + pi, 1)


def _transformed(re: Array, im: Array, turns: np.ndarray) -> tuple[Array, Array, np.ndarray]:
    """Pease's algorithm: all passes read and write the same places, so that they are one loop.

    A device then has the code of one pass, which is most of what a front end takes otherwise.
    Between passes numbers have 16 bits: a pass takes the mean of two numbers, which a Hann window
    weighs by at most 1 together, so that they are below 2^15 sqrt(1/2) from the first one on.

    Parts are int16 `[length]`; `turns` are cosines and sines of fractions of a half circle, int16
    `[length / 2, 2]` or more. Returns both parts, and where each number of the transform stands in
    them.
    """
    length = len(re)
    bits, half = length.bit_length() - 1, length // 2
    place, (cos, sin) = jnp.arange(half, dtype=jnp.int16), map(jnp.asarray, turns.T)

    def one(number: Array, parts: tuple[Array, Array]) -> tuple[Array, Array]:
        (ar, br), (ai, bi) = (
            (part[:half].astype(jnp.int32), part[half:].astype(jnp.int32)) for part in parts
        )
        # Halves are added and subtracted; the difference is turned, and both take turns. A half
        # is rounded up in one pass and down in the next: always up would be a constant in bin 0.
        up = (number + 1) & 1
        sums = (ar + br + up) >> 1, (ai + bi + up) >> 1
        # Of the table's angles the pass takes every second, fourth, ..., each for as many places.
        few = number.astype(place.dtype)
        # Once for each table, which then is one kernel: what both share would be kept three times.
        c, s = (_looked_up(table, (place >> few) << few) for table in (cos, sin))
        turned = _turned(ar - br, ai - bi, c, s, TWIDDLE + 1)
        first, second = (
            jnp.stack([part.astype(jnp.int16) for part in pair], 1).reshape(-1)
            for pair in zip(sums, turned, strict=True)
        )
        return first, second

    # Exported, unrolled passes would hold a table of turns each; no one is to know their number.
    passes = jax.lax.optimization_barrier(jnp.int32(bits))
    re, im = jax.lax.fori_loop(0, passes, one, (re, im))
    # Results are in the order of reversed bits.
    order = np.array([int(f"{i:0{bits}b}"[::-1] or "0", 2) for i in range(length)])
    return re, im, order


def _looked_up(table: Array, places: Any) -> Array:
    """Reads int32 at places that are known to be inside."""
    values = table.at[places].get(mode="promise_in_bounds", wrap_negative_indices=False)
    return values.astype(jnp.int32)


def _fractions(angles: np.ndarray) -> np.ndarray:
    """Rounds cosines and sines to whole numbers, int16 `[angles, 2]`."""
    parts = np.stack([np.cos(angles), np.sin(angles)], 1)
    return np.round(parts * 2**TWIDDLE).astype(np.int16)


def _turned(re: Array, im: Array, cos: Any, sin: Any, bits: int) -> tuple[Array, Array]:
    """Multiplies by ``cos - i sin``, over a power of two."""
    return shifted(re * cos + im * sin, bits), shifted(im * cos - re * sin, bits)


def filtered(energy: Int32[Array, " bins"], filters: np.ndarray) -> tuple[Array, Array]:
    """Sums energies by filters, as upper and lower part.

    Energies are `[bins]`, non-negative, filters `[bins, bands]`, at most 1. Returns two arrays
    `[bands]`: the sums are ``upper 2^15 + lower``, in units of 2^-8.
    """
    # A triangle covers few of the bins: those of each, side by side, are far fewer products than
    # a matrix has.
    weights = np.round(filters * 2**WEIGHT).astype(np.int32)
    first = (weights > 0).argmax(0)
    width = int((weights > 0).sum(0).max())
    at = np.minimum(first[:, None] + np.arange(width), len(filters) - 1)
    inside = first[:, None] + np.arange(width) < len(filters)
    chosen = np.where(inside, weights[at, np.arange(filters.shape[1])[:, None]], 0)
    # 2^16 by 2^8 by fewer than 2^7 bins: below 2^31.
    energies = _looked_up(energy, at)
    upper = ((energies >> LOW) * chosen).sum(1)
    lower = ((energies & (2**LOW - 1)) * chosen).sum(1)
    return upper + (lower >> LOW), lower & (2**LOW - 1)


def log2(upper: Int32[Array, " bands"], lower: Int32[Array, " bands"]) -> Int32[Array, " bands"]:
    """Computes logarithms to base 2 of ``upper 2^15 + lower``, in steps of 2^-8; 1 below 1."""
    # The highest 31 bits, as a number from 2^30 to 2^31.
    upper_or_lower = jnp.where(upper > 0, upper, jnp.maximum(lower, 1))
    bits = leading(upper_or_lower)
    mantissa = upper_or_lower << (31 - bits)
    # Where the upper part has fewer bits than that, the lower one's follow.
    more = jnp.where((upper > 0), lower, 0)
    follow = jnp.clip(31 - bits, 0, 31)
    mantissa = mantissa | jnp.where(
        follow >= LOW, more << jnp.maximum(follow - LOW, 0), more >> jnp.maximum(LOW - follow, 0)
    )
    exponent = bits - 1 + jnp.where(upper > 0, LOW, 0)
    # The line between two entries of the table is below the logarithm by less than 2^-15.
    fine = LOG + 6
    entries = np.round(np.log2(1 + np.arange(2**TABLE + 1) / 2**TABLE) * 2**fine)
    table = jnp.asarray(entries, jnp.int16)
    place = (mantissa >> (30 - TABLE)) & (2**TABLE - 1)
    between = (mantissa >> (30 - TABLE - 15)) & (2**15 - 1)
    below, above = _looked_up(table, place), _looked_up(table, place + 1)
    fraction = below + shifted((above - below) * between, 15)
    return (exponent << LOG) + shifted(fraction, fine - LOG)


def power_of_two(size: int) -> int:
    """Returns the least power of two that is not below a size."""
    return 1 << math.ceil(math.log2(size))


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


@validate(
    audio=real_array(2),
    bands=static_integer(),
    frames=static_integer(),
    low=non_negative,
    high=positive,
)
def log_mel(
    audio: Int16[np.ndarray, "n samples"],
    bands: int = 32,
    frames: int = 32,
    low: float = 60.0,
    high: float = 7600.0,
) -> Float[np.ndarray, "n frames bands"]:
    """Computes log-mel spectra, non-negative, as the pulses of an analog chip have to be.

    Frames are Hann windows of 1024 samples (64 ms), evenly spread over the recording; bands are
    `mel_filters` of HTK's scale. Energies are compressed
    by ``log(1 + energy / 1e-3)``, which is zero for silence.

    Args:
        audio: `[n, samples]` at 16 kHz.
        bands: Mel bands.
        frames: Spectra per recording.
        low: Lower end of the first band in Hz.
        high: Upper end of the last.

    Returns:
        float32 `[n, frames, bands]`, at least 0.

    Raises:
        TypeError: Audio isn't int16 with two axes.
    """
    if audio.dtype != np.int16 or audio.ndim != 2:
        raise TypeError(f"log_mel: expected int16 [n, samples], found {audio.dtype}{audio.shape}")
    size = 1024
    starts = np.linspace(0, audio.shape[1] - size, frames).astype(int)
    # int16 as a fraction of full scale; in the window, so that no scaled copy is made.
    window = np.hanning(size).astype(np.float32) / 32768
    banks = mel_filters(bands, size, low=low, high=high)
    features = np.empty((len(audio), frames, bands), np.float32)
    # Frame by frame: the spectra of all frames at once would be several times the recordings.
    for i, start in enumerate(starts):
        spectrum = np.fft.rfft(audio[:, start : start + size] * window, axis=1)
        features[:, i] = np.log1p((np.abs(spectrum) ** 2 @ banks) / 1e-3)
    return features


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

    Sharp edges:
        The first frame begins with the first sample; nothing is padded, and what is left of the
        last hop is dropped.
        Energies are of samples as fractions of full scale, and no smaller than `floor`. In fixed
        point spectra have 16 bits: beside a loud tone, bands more than 80 dB below it hold rounding
        errors.
        In fixed point no product exceeds int32, which is all that JAX has by default, and all that
        a Cortex-M0 multiplies. Where a bound decides a shift, it stands beside it.

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
        if (empty := np.flatnonzero(self.filters.max(0) < 2**-WEIGHT)).size:
            raise ValueError(
                f"LogMel: filter {empty[0]} of {self.bands} lies between the spectrum's bins, "
                f"which are {self.rate / self.size:g} Hz apart; take fewer bands or a longer window"
            )

    @property
    def size(self) -> int:
        """Length of the Fourier transform."""
        return max(power_of_two(self.window), 4)

    @property
    def filters(self) -> Float[np.ndarray, "bins bands"]:
        """The mel filters."""
        return mel_filters(self.bands, self.size, self.rate, self.low, self.high, self.scale)

    @property
    def step(self) -> float:
        """The difference that one in the results of `fixed` stands for."""
        return math.log(2) / 2**LOG

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
        lift = jnp.clip(15 - leading(jnp.abs(x).max()), 0, 15)
        window = np.round(hann(self.window) * _FULL).astype(np.int32)
        windowed = shifted(jnp.clip(x << lift, 1 - _FULL, _FULL - 1) * window, 15)
        padded = jnp.pad(windowed.astype(jnp.int16), (0, self.size - self.window))
        # Over half the transform's length: of a window of mean 1/2 at most 2^15.
        re, im = half_spectrum(padded)
        sums = filtered(re * re + im * im, self.filters)
        # Those were sums of 2^-8 times energies of (2 / size 2^15 2^lift)^2.
        scale = WEIGHT + 2 * (15 + 1 - int(math.log2(self.size)))
        logs = log2(*sums) - ((scale + 2 * lift) << LOG)
        logs = jnp.maximum(logs, round(math.log2(self.floor) * 2**LOG))
        if self.cepstra is None:
            return logs
        table = np.round(cosines(self.bands, self.cepstra) * 2**_COSINE).astype(np.int32)
        return shifted(logs @ table, _COSINE)
