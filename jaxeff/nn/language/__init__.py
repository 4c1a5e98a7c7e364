"""Decoders of text with weights and tokenizers of GGUF files.

```python
import jax.numpy as jnp
from flax import nnx

import jaxeff
from jaxeff.nn import Decoder, DecoderConfig

config = DecoderConfig(vocabulary=50, width=16, hidden=32, depth=2, heads=4, key_heads=2)
f, params = jaxeff.functional(Decoder(config, rngs=nnx.Rngs(0)))
tokens = jnp.array([[3, 1, 4, 1]])
logits = f(params, tokens)                                     # [1, 4, 50]
start, cache = f(params, tokens[:, :3], config.empty_cache(1, 8))
last, cache = f(params, tokens[:, 3:], cache)                  # as logits[:, 3:]
```

`load_decoder()` gives SmolLM2-135M: function, parameters and tokenizer.
"""

from jaxeff.nn.language._config import DecoderCache, DecoderConfig, smollm2_135m
from jaxeff.nn.language._decoder import Decoder
from jaxeff.nn.language._pretrained import PretrainedDecoder, load_decoder, load_tokenizer
from jaxeff.nn.language._sampling import generate, sample
from jaxeff.nn.language._tokenizer import Tokenizer

__all__ = [
    "Decoder",
    "DecoderCache",
    "DecoderConfig",
    "PretrainedDecoder",
    "Tokenizer",
    "generate",
    "load_decoder",
    "load_tokenizer",
    "sample",
    "smollm2_135m",
]
