"""Resource-efficient, robust and uncertainty-aware neural networks as JAX function transforms.

```python
import jax
import jaxeff
from flax import nnx
from jaxeff import Additive, ChaoticLight, Int, nn

key, x = jax.random.key(0), jax.numpy.ones((2, 28, 28, 1))
f, params = jaxeff.functional(nn.SmallCNN(rngs=nnx.Rngs(0)))  # NNX, Linen -> pure function, pytree
jaxeff.summary(f, params, x)                               # the layers and what they cost
g = jaxeff.noisy(f, {"conv*": Additive(0.3)})              # g(key, params, x)
g = jaxeff.photonic(f, {"avg_pool*": ChaoticLight(0.5)})   # g(key, params, x)
g = jaxeff.analog(f, {"fc*:linear": jaxeff.Crossbar()})    # g(key, params, x)
g = jaxeff.quantized(f, {"*:linear": Int(8)})              # g(params, x)
g = jaxeff.lora(f, {"fc*": jaxeff.LoRA(rank=4)})           # g(params, adapters, x)
g = jaxeff.moments(f)                                      # g(params, x), any leaf may be Gaussian
g(params, x).var                                           # [2, 10]: zero, for nothing is random
```

Settings and everything else live in the rooms, `jaxeff.noise` and so on: `noise`, `compression`,
`pruning`, `moment_propagation`, `photonics`, `robustness`, `hardening`, `bayes`, `uncertainty`,
`ensembles`, `data`, `nn`, `analog_hardware`, `dirty_mnist`, `training`, `store`, `weights`,
`adapters`, `reporting`; `contrib` has what nothing else builds on.
"""

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxeff.adapters import LoRA as LoRA
    from jaxeff.adapters import lora as lora
    from jaxeff.analog_hardware import Crossbar as Crossbar
    from jaxeff.analog_hardware import analog as analog
    from jaxeff.compression import Int as Int
    from jaxeff.compression import integer as integer
    from jaxeff.compression import quantized as quantized
    from jaxeff.core import functional as functional
    from jaxeff.core import restore as restore
    from jaxeff.ensembles import ensemble as ensemble
    from jaxeff.moment_propagation import Gaussian as Gaussian
    from jaxeff.moment_propagation import MomentsWarning as MomentsWarning
    from jaxeff.moment_propagation import assumptions as assumptions
    from jaxeff.moment_propagation import calibrate_moments as calibrate_moments
    from jaxeff.moment_propagation import moments as moments
    from jaxeff.moment_propagation import moments_check as moments_check
    from jaxeff.noise import Additive as Additive
    from jaxeff.noise import Mixed as Mixed
    from jaxeff.noise import Multiplicative as Multiplicative
    from jaxeff.noise import noisy as noisy
    from jaxeff.photonics import ChaoticLight as ChaoticLight
    from jaxeff.photonics import photonic as photonic
    from jaxeff.program import CompilerWarning as CompilerWarning
    from jaxeff.program import cost as cost
    from jaxeff.program import sites as sites
    from jaxeff.program import streaming as streaming
    from jaxeff.program import summary as summary
    from jaxeff.program import trace as trace
    from jaxeff.pruning import channels as channels
    from jaxeff.pruning import masked as masked
    from jaxeff.pruning import prune_plan as prune_plan
    from jaxeff.pruning import pruned as pruned
    from jaxeff.reporting import report as report
    from jaxeff.weights import load_weights as load_weights

__version__ = "0.1.0"

_ROOMS = {
    "adapters": ("LoRA", "lora"),
    "analog_hardware": ("Crossbar", "analog"),
    "compression": ("Int", "integer", "quantized"),
    "core": ("functional", "restore"),
    "ensembles": ("ensemble",),
    "moment_propagation": (
        "Gaussian",
        "MomentsWarning",
        "assumptions",
        "calibrate_moments",
        "moments",
        "moments_check",
    ),
    "noise": ("Additive", "Mixed", "Multiplicative", "noisy"),
    "photonics": ("ChaoticLight", "photonic"),
    "program": ("CompilerWarning", "cost", "sites", "streaming", "summary", "trace"),
    "pruning": ("channels", "masked", "prune_plan", "pruned"),
    "reporting": ("report",),
    "weights": ("load_weights",),
}
"""The names that are here too, by the room that offers them; rooms are loaded when asked for."""

_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = sorted(_ROOM_OF)


def __getattr__(name: str) -> Any:
    if name in _ROOM_OF:
        value = getattr(import_module(f"{__name__}.{_ROOM_OF[name]}"), name)
        globals()[name] = value  # found once
        return value
    if name in {room.name for room in iter_modules(__path__) if room.ispkg}:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
