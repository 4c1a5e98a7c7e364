"""A classifier of file types from their bytes, with the weights that Google published.

```python
import jax.numpy as jnp
from flax import nnx

import jaxeff
from jaxeff.nn import Magika, file_tokens

f, params = jaxeff.functional(Magika(rngs=nnx.Rngs(0)))
tokens = jnp.stack([file_tokens(b"import os")])               # [1, 2048]
logits = f(params, tokens)                                     # [1, 214]
```

`load_magika()` gives the function, the published parameters and the names of the types.
"""

from jaxeff.nn.file_types._magika import Magika, file_tokens
from jaxeff.nn.file_types._pretrained import PretrainedMagika, load_magika

__all__ = ["Magika", "PretrainedMagika", "file_tokens", "load_magika"]
