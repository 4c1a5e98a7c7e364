"""Resource-efficient, robust and uncertainty-aware neural networks as JAX function transforms.

```python
import jax
from flax import nnx

import jaxeff
from jaxeff import Additive, ChaoticLight, Int
from jaxeff.nn import SmallCNN

key, x = jax.random.key(0), jax.numpy.ones((2, 28, 28, 1))
f, params = jaxeff.functional(SmallCNN(rngs=nnx.Rngs(0)))  # NNX or Linen -> pure function, pytree
jaxeff.summary(f, params, x)                               # the layers and what they cost

g = jaxeff.noisy(f, {"conv*": Additive(0.3)})              # g(key, params, x)
g = jaxeff.photonic(f, {"avg_pool*": ChaoticLight(0.5)})   # g(key, params, x)
g = jaxeff.analog(f, {"fc*:linear": jaxeff.Crossbar()})    # g(key, params, x)
g = jaxeff.quantized(f, {"*:linear": Int(8)})              # g(params, x)
g = jaxeff.lora(f, {"fc*": jaxeff.LoRA(rank=4)})           # g(params, adapters, x)
g = jaxeff.moments(f)                                      # g(params, x), any leaf may be Gaussian
g(params, x).var                                           # [2, 10]: zero, for nothing is random
```

Settings and everything else live in the rooms: `jaxeff.noise`, `jaxeff.compression`,
`jaxeff.pruning`, `jaxeff.moment_propagation`, `jaxeff.photonics`, `jaxeff.robustness`,
`jaxeff.hardening`, `jaxeff.bayes`, `jaxeff.uncertainty`, `jaxeff.ensembles`, `jaxeff.data`,
`jaxeff.nn`, `jaxeff.analog_hardware`, `jaxeff.dirty_mnist`, `jaxeff.training`, `jaxeff.store`,
`jaxeff.weights`, `jaxeff.adapters`, `jaxeff.reporting`; `jaxeff.contrib` has what nothing else
builds on.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from jaxeff.adapters import LoRA, lora
from jaxeff.compression import Int, integer, quantized
from jaxeff.core import functional, restore
from jaxeff.ensembles import ensemble
from jaxeff.moment_propagation import (
    Gaussian,
    MomentsWarning,
    assumptions,
    calibrate_moments,
    moments,
    moments_check,
)
from jaxeff.noise import Additive, Mixed, Multiplicative, noisy
from jaxeff.photonics import ChaoticLight, photonic
from jaxeff.program import CompilerWarning, cost, sites, streaming, summary, trace
from jaxeff.pruning import channels, masked, prune_plan, pruned
from jaxeff.weights import load_weights

if TYPE_CHECKING:
    from jaxeff.analog_hardware import Crossbar, analog
    from jaxeff.reporting import report

__version__ = "0.1.0"

__all__ = [
    "Additive",
    "ChaoticLight",
    "CompilerWarning",
    "Crossbar",
    "Gaussian",
    "Int",
    "LoRA",
    "Mixed",
    "MomentsWarning",
    "Multiplicative",
    "analog",
    "assumptions",
    "calibrate_moments",
    "channels",
    "cost",
    "ensemble",
    "functional",
    "integer",
    "load_weights",
    "lora",
    "masked",
    "moments",
    "moments_check",
    "noisy",
    "photonic",
    "prune_plan",
    "pruned",
    "quantized",
    "report",
    "restore",
    "sites",
    "streaming",
    "summary",
    "trace",
]


_LATER = {"Crossbar": "analog_hardware", "analog": "analog_hardware", "report": "reporting"}
"""Names whose rooms load SciPy's solvers, or all other rooms: found when they are asked for."""


def __getattr__(name: str) -> Any:
    if room := _LATER.get(name):
        return getattr(import_module(f"jaxeff.{room}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
