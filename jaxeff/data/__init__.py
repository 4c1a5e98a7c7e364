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

from jaxeff.data import _noisy_sine
from jaxeff.data._catalogue import NAMES as NAMES
from jaxeff.data._catalogue import VARIABLE as VARIABLE
from jaxeff.data._catalogue import augment as augment
from jaxeff.data._catalogue import available as available
from jaxeff.data._catalogue import load as load
from jaxeff.data._catalogue import normalize as normalize
from jaxeff.data._corruptions import CORRUPTIONS as CORRUPTIONS
from jaxeff.data._corruptions import corrupt as corrupt
from jaxeff.data._formats import DataError as DataError
from jaxeff.data._formats import Dataset as Dataset
from jaxeff.data._noisy_sine import REGIMES as REGIMES
from jaxeff.data._noisy_sine import noisy_sine as noisy_sine
from jaxeff.data._noisy_sine import span as span
from jaxeff.data._speech import Recordings as Recordings
from jaxeff.data._speech import recording as recording
from jaxeff.data._speech import recordings as recordings
from jaxeff.data._speech import speech_commands as speech_commands
from jaxeff.data._speech import tones as tones
from jaxeff.data._two_moons import NOISE as NOISE
from jaxeff.data._two_moons import plane as plane
from jaxeff.data._two_moons import two_moons as two_moons

sine = _noisy_sine
