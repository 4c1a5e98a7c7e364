"""Data for the experiments: images in standard formats from ``JAXEFF_DATA``, digits embedded.

```python
from jaxeff import data

digits = data.load("digits")  # embedded; "mnist" and others need JAXEFF_DATA
x = data.normalize(digits.train_images, "digits")
ood = data.normalize(data.load("digits-ood").test_images, "digits")
```

Two small sets are drawn rather than loaded: `noisy_sine`, whose exact target and noise are in
`sine`, and `two_moons`. `jaxeff.dirty_mnist` builds a third by training networks.
`speech_commands` loads recordings of spoken words; `log_mel` computes their features. `corrupt`
makes images worse in fifteen ways.
"""

from jaxeff.data import _noisy_sine as sine
from jaxeff.data._augmentation import augment
from jaxeff.data._catalogue import NAMES, VARIABLE, available, load
from jaxeff.data._dataset import Dataset
from jaxeff.data._errors import DataError
from jaxeff.data._noisy_sine import REGIMES, noisy_sine, span
from jaxeff.data._normalization import normalize
from jaxeff.data._speech import Recordings, log_mel, speech_commands, tones
from jaxeff.data._two_moons import NOISE, plane, two_moons
from jaxeff.data.corruptions import CORRUPTIONS, corrupt

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
    "log_mel",
    "noisy_sine",
    "normalize",
    "plane",
    "sine",
    "span",
    "speech_commands",
    "tones",
    "two_moons",
]
