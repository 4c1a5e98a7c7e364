"""Constants of a spectrum's features: the window, the mel filters, the cosines of cepstra.

```python
from jaxeff import nn

assert nn.hann(480).shape == (480,)
assert nn.mel_filters(40, 512).shape == (257, 40)      # [bins, bands]
```
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from jaxtyping import Float

from jaxeff.core import non_negative, one_of, positive, static_integer, validate

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
