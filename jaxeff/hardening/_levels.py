"""Noise levels that change during training: incremental noise by any schedule.

```python
import jax
import optax

from jaxeff.hardening import incremental_noise
from jaxeff.nn import small_classifier
from jaxeff.noise import Additive, noisy
from jaxeff.training import cross_entropy, fit

f, params, data = small_classifier()
loss_at = lambda spec: cross_entropy(noisy(f, spec), keyed=True)
growing = incremental_noise(loss_at, optax.linear_schedule(0.0, 1.0, 100))
loss = growing({"*": Additive(0.5)})
fit(jax.random.key(0), loss, params, data, optimizer=optax.adam(1e-2), epochs=2, batch_size=32)
```

`optax.join_schedules` gives a clean start before a ramp, or stairs. Each step trains under the
noise of

```python
from jaxeff.hardening import scale_levels

halfway = scale_levels({"conv*": Additive(0.5), "fc*": None}, 0.5)
assert halfway == {"conv*": Additive(0.25), "fc*": None}
```
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxeff.core import function_of_form, non_negative, validate
from jaxeff.noise import Noise
from jaxeff.training import Loss


@validate(factor=non_negative)
def scale_levels(spec: Any, factor: Any) -> Any:
    """Multiplies every level of a noise specification.

    Args:
        spec: A pytree whose leaves are levels: `{pattern: setting}`, one setting, or arrays. Of a
            model that names its `levels` (drift: not its time) only those are multiplied.
        factor: A scalar, such as a schedule's value.

    Returns:
        The same structure; settings that are None stay None.

    Raises:
        TypeError: A leaf is no number, as of a noise model that isn't registered as a pytree.
        ValueError: The factor is negative or NaN; a traced one isn't looked at.
    """

    def scale(path: Any, level: Any) -> Any:
        # A model that names its levels has other numbers too (a time, a device), which stay.
        if _names_levels(level):
            levels = {name: getattr(level, name) for name in level.levels}
            # `replace` calls the constructor, so scaled levels are checked as given ones are.
            return dataclasses.replace(level, **scale_levels(levels, factor))
        try:
            # An unregistered model is a single leaf, of which no dtype can be found.
            numeric = jnp.issubdtype(jnp.result_type(level), jnp.number)
        except TypeError:
            numeric = False
        if not numeric:
            raise TypeError(
                f"spec{jax.tree_util.keystr(path)} is {level!r} and not a level; a noise model "
                "whose levels are to change must be a pytree (jaxeff.core.register_setting)."
            )
        return factor * level

    return jax.tree_util.tree_map_with_path(scale, spec, is_leaf=_names_levels)


def _names_levels(node: Any) -> bool:
    """Tells whether a model has other numbers than levels: a time, a device."""
    return isinstance(node, Noise) and hasattr(node, "levels")


@validate(loss_at=function_of_form("loss_at(level)"), schedule=function_of_form("schedule(step)"))
def incremental_noise(
    loss_at: Callable[[Any], Loss], schedule: optax.Schedule
) -> Callable[[Any], Loss]:
    """Makes noisy training whose levels follow a schedule of the training step.

    Args:
        loss_at: The loss of a setting.
        schedule: Any optax schedule; its value multiplies the levels.

    Returns:
        `loss_at` with the setting scaled by `schedule(step)`.
    """

    def at(setting: Any) -> Loss:
        def loss(key: Any, params: Any, state: Any, batch: Any, step: Any) -> Any:
            # Levels are leaves and the step is traced: all steps are one compiled program.
            now = scale_levels(setting, schedule(step))
            return loss_at(now)(key, params, state, batch, step)

        return loss

    return at
