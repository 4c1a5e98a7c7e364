"""Data for the experiments: images in standard formats from ``JAXEFF_DATA``, digits embedded.

```python
from jaxeff import data

digits = data.load("digits")  # embedded; "mnist" and others need JAXEFF_DATA
x = data.normalize(digits.train_images, "digits")
ood = data.normalize(data.load("digits-ood").test_images, "digits")
```

Two small sets are drawn rather than loaded: `jaxeff.data.noisy_sine` and `jaxeff.data.two_moons`.
A third is built, by training, in a room of its own: `jaxeff.dirty_mnist`. Recordings of spoken
words are `speech_commands`, their features `log_mel`.
"""

from jaxeff.data.augmentation import augment
from jaxeff.data.catalogue import NAMES, available, load
from jaxeff.data.dataset import Dataset
from jaxeff.data.errors import DataError
from jaxeff.data.normalization import normalize
from jaxeff.data.speech import Recordings, log_mel, speech_commands, tones

__all__ = [
    "NAMES",
    "DataError",
    "Dataset",
    "Recordings",
    "augment",
    "available",
    "load",
    "log_mel",
    "normalize",
    "speech_commands",
    "tones",
]
