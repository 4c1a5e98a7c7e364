"""Data for the experiments: images in standard formats from ``JAXEFF_DATA``, digits embedded.

```python
from jaxeff import data

digits = data.load("digits")  # embedded; "mnist" and others need JAXEFF_DATA
x = data.normalize(digits.train_images, "digits")
ood = data.normalize(data.load("digits-ood").test_images, "digits")
```

Two small sets are drawn rather than loaded: `noisy_sine`, whose exact target and noise are in
`sine`, and `two_moons`. `jaxeff.dirty_mnist` builds a third by training networks.
`speech_commands` loads recordings of spoken words. `corrupt`
makes images worse in fifteen ways.
"""

from jaxeff.data import _noisy_sine as sine
from jaxeff.data._catalogue import NAMES, VARIABLE, augment, available, load, normalize
from jaxeff.data._corruptions import CORRUPTIONS, corrupt
from jaxeff.data._formats import DataError, Dataset
from jaxeff.data._noisy_sine import REGIMES, noisy_sine, span
from jaxeff.data._speech import Recordings, recordings, speech_commands, tones
from jaxeff.data._two_moons import NOISE, plane, two_moons

__all__ = [
    "CORRUPTIONS",
    "NAMES",
    "NOISE",
    "REGIMES",
    "VARIABLE",
    "DataError",
    "Dataset",
    "Recordings",
    "augment",
    "available",
    "corrupt",
    "load",
    "noisy_sine",
    "normalize",
    "plane",
    "recordings",
    "sine",
    "span",
    "speech_commands",
    "tones",
    "two_moons",
]
