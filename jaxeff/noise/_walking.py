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

Every setting names all the sites, with a level of zero at all but one, so that the whole walk is
one program. Layers without noise draw it none the less.

References:
    Borras et al., "Walking Noise: On Layer-Specific Robustness of Neural Architectures against
    Noisy Computations and Associated Characteristic Learning Dynamics", arXiv:2212.10430.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from jaxeff.core import any_of, function_of_form, instance_of, real_array, validate
from jaxeff.noise.models import Noise


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
