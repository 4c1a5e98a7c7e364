"""Walking noise: the noise of one layer at a time, as the settings of a sweep.

```python
import jax
import jax.numpy as jnp
import optax

from jaxeff.nn import small_classifier
from jaxeff.noise import Additive, noisy, slots, walking_noise
from jaxeff.training import cross_entropy, sweep

f, params, (x, y) = small_classifier()
spec, rows = walking_noise(slots(f, params, x), jnp.array([0.1, 1.0]), Additive)

def score(key, trained, state, spec):
    return {"accuracy": jnp.mean(noisy(f, spec)(key, trained, x).argmax(-1) == y)}

result = sweep(
    jax.random.key(0), lambda spec: cross_entropy(noisy(f, spec), keyed=True),
    lambda key: (params, None), (x, y), spec,
    optimizer=optax.adam(1e-3), epochs=1, batch_size=32, score=score,
)
result.scores["accuracy"][0]                     # [settings], under noise of rows: (site, level)
```
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from jaxeff.core import any_of, function_of_form, instance_of, real_array, validate
from jaxeff.noise.models import Noise
from jaxeff.program import Layer, Program, trace


@validate(
    model=function_of_form("model(level)"),
    levels=any_of(real_array(1, 2), instance_of(list, tuple)),
)
def walking_noise(
    sites: Sequence[str],
    levels: Float[np.ndarray, " levels"] | Float[np.ndarray, "levels parts"] | Sequence[Any],
    model: Callable[..., Noise],
) -> tuple[dict[str, Noise], list[tuple[str, Any]]]:
    """Makes the settings of a walk: every site at every level, the other sites silent.

    Every setting names all the sites, with a level of zero at all but one, so that the whole walk
    is one program. Layers without noise draw it none the less.

    Args:
        sites: Sites that the noise visits one by one, such as `slots(f, params, x)`; each exactly
            once.
        levels: The levels of noise at one site; for a model of several, such as `Mixed`, a tuple
            per setting.
        model: Makes a noise model from arrays of levels, one array per part of a level: a class
            such as `Additive`, or `functools.partial(Mixed, order="add_mul")`. Its other numbers
            (a time, a device) are the same in every setting.

    Returns:
        A spec whose levels have a leading axis of `len(sites) * len(levels)` settings, all levels
        of the first site first; and for each setting its site and its level (a float, or a tuple).

    Raises:
        TypeError: `model` doesn't make pytrees of numbers.
        ValueError: There is no site or level, or a site comes twice.

    References:
        Borras et al., "Walking Noise: On Layer-Specific Robustness of Neural Architectures against
        Noisy Computations and Associated Characteristic Learning Dynamics", arXiv:2212.10430.
    """
    table = np.asarray(levels, np.float64)
    if table.ndim not in (1, 2) or not table.size or not len(sites):
        raise ValueError(
            f"Noise walks over a list of sites and a list of levels (numbers, or tuples of equal "
            f"length), not over {len(sites)} sites and levels of shape {table.shape}."
        )
    twice = [site for i, site in enumerate(sites) if site in sites[:i]]
    if twice:
        raise ValueError(f"Noise walks over every site once, but {twice[0]!r} comes twice.")
    # One row per part of a level, so that a plain list of levels has a single part.
    parts = table.reshape(len(table), -1).T
    settings = (len(parts), len(sites), len(table))
    spec: dict[str, Noise] = {}
    for index, site in enumerate(sites):
        # Zero by default: in the settings of other sites this one is silent. Sites come first and
        # levels second, the order in which the rows are listed below.
        levels_by_setting = np.zeros(settings, np.float32)
        levels_by_setting[:, index] = parts
        settings_of_site = model(*levels_by_setting.reshape(len(parts), -1))
        spec[site] = jax.tree.map(
            lambda leaf: _per_setting(leaf, len(sites) * len(table)), settings_of_site
        )
    rows = [tuple(row) if table.ndim == 2 else row for row in table.tolist()]
    return spec, [(site, level) for site in sites for level in rows]


def _per_setting(leaf: Any, settings: int) -> Any:
    if not isinstance(leaf, int | float | np.ndarray | jax.Array):
        raise TypeError(
            f"A model whose levels walk must be a pytree of numbers "
            f"(jaxeff.core.register_setting), but holds {leaf!r}."
        )
    # Numbers that are no levels (a time, a device) are repeated: `vmap` maps every leaf.
    return leaf if np.ndim(leaf) else np.full(settings, leaf)


@validate()
def slots(f: Callable[..., Any], params: Any, *args: Any, **kwargs: Any) -> list[str]:
    """Lists the sites of a network's noise slots, in order of execution.

    `slots` names computations after which Klein's thesis injects noise. In a network that is a
    chain every one is a slot: the input, dense and convolution layers, normalizations, activations,
    poolings. In a residual network the accounting is that of folded hardware: convolutions (those
    of shortcuts included), poolings and dense layers have slots, but normalization belongs to its
    convolution, an addition to the activation after it, and an activation inside a branch has none.

    | network | slots |
    |---|---|
    | MLP of three hidden layers | 8, with batch norm 11 |
    | LeNet-5 | 12, with batch norm 16 |
    | VGG-11 | 27 |
    | ResNet-18 | 33: input, 20 convolutions, 9 ReLUs, 2 poolings, dense |

    `noisy(f, {site: model for site in slots(f, params, x)})` is the thesis' global noise; for a
    chain it is that of `{"*": model}`.

    ```python
    import jax
    from jaxeff import Additive, noisy
    from jaxeff.nn import small_classifier
    from jaxeff.noise import slots

    f, params, (x, y) = small_classifier(10)
    everywhere = {site: Additive(0.1) for site in slots(f, params, x)}
    noisy(f, everywhere)(jax.random.key(0), params, x)
    ```

    Args:
        f: A pure function `f(params, *args)`.
        params: The parameters of `f`.
        *args: Further arguments of `f`; shapes are enough.
        **kwargs: Keyword arguments of `f`.

    Returns:
        Names of sites.

    References:
        Borras et al., "Walking Noise", arXiv:2212.10430; Wang et al., arXiv:2501.14531.
    """
    program = trace(f, params, *args, **kwargs)
    # Asked of the whole network: a loop body without branches follows the accounting around it.
    is_residual = any(_joins(layer) for layer in program.walk() if layer.is_matchable)
    return _slots(program, is_residual)


def _slots(program: Program, is_residual: bool) -> list[str]:
    trunk = _trunk(program) if is_residual else set()
    sites: list[str] = []
    for layer in program.layers:
        if layer.kind == "control flow":
            sites += [site for body in layer.programs for site in _slots(body, is_residual)]
        elif layer.is_matchable and (not is_residual or _is_residual_slot(layer, trunk)):
            sites.append(layer.site)
    return sites


def _joins(layer: Layer) -> bool:
    """Tells whether branches meet at a layer."""
    return layer.kind == "elementwise" and len(layer.data) > 1


def _is_residual_slot(layer: Layer, trunk: set[str]) -> bool:
    if layer.kind == "elementwise":
        return layer.site in trunk and not _joins(layer)
    return layer.kind != "normalization"


def _trunk(program: Program) -> set[str]:
    """Finds the sites outside all branches: all that is read later depends on their result."""
    layers = [layer for layer in program.layers if not layer.auxiliary]
    # Later readers overwrite earlier ones, so the last one stays; results are read at the end.
    last_reader = {v: i for i, layer in enumerate(layers) for v in layer.inputs if v.is_data}
    last_reader |= {v: len(layers) for v in program.outputs if v in last_reader}
    live = {v for v in program.inputs if v.is_data}
    trunk: set[str] = set()
    for i, layer in enumerate(layers):
        # A value is live while a later layer or the result still reads it.
        live = {v for v in (*live, *layer.outputs) if last_reader.get(v, -1) > i}
        # Nothing older is live: every path to the result leads through this layer.
        if live <= set(layer.outputs):
            trunk.add(layer.site)
    return trunk
