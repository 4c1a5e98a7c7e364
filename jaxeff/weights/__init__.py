"""Weights that other libraries trained: names and shapes are matched, and the pairs are printed.

```python
import numpy as np
from flax import nnx

import jaxeff
from jaxeff.nn import MLP

f, params = jaxeff.functional(MLP((3, 4, 2), rngs=nnx.Rngs(0)))
torch = {                                  # as `{k: v.numpy() for k, v in model.state_dict()...}`
    "layers.0.weight": np.ones((4, 3)), "layers.0.bias": np.zeros(4),
    "layers.1.weight": np.ones((2, 4)), "layers.1.bias": np.zeros(2),
}
params, pairs = jaxeff.load_weights(params, torch)   # or "model.safetensors", .gguf, .npz, .onnx
print(pairs)                               # parameter, tensor, shape, what was done to it
```

Either every parameter gets its tensor, or an error says what is ambiguous and with which
candidates, and nothing is loaded. No format that is read here can hold code.
"""

from jaxeff.weights._files import WeightsError as WeightsError
from jaxeff.weights._files import gguf_metadata as gguf_metadata
from jaxeff.weights._files import packaged_file as packaged_file
from jaxeff.weights._hub import HubModel as HubModel
from jaxeff.weights._hub import load_from_hub as load_from_hub
from jaxeff.weights._hub import push_to_hub as push_to_hub
from jaxeff.weights._load import LoadedWeights as LoadedWeights
from jaxeff.weights._load import load_weights as load_weights
from jaxeff.weights._matching import channels_last_inputs as channels_last_inputs
from jaxeff.weights._matching import rotary_halves as rotary_halves
from jaxeff.weights._orbax import save_weights as save_weights
