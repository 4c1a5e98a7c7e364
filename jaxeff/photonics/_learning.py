"""Variational inference over activations, by noise levels that photonic hardware can have.

The posterior of a pooled activation is light between the quietest and the noisiest that the
hardware makes, at a level that is learnt; its prior is the noisiest. `divergence` adds their KL
divergence to `jaxeff.photonic`; the likelihood is the caller's.

```python
import jax

from jaxeff.nn import small_classifier
from jaxeff.photonics import (
    ChaoticLight, divergence, level_logits, levels_per_activation, replace_levels
)

f, params, (x, y) = small_classifier()
spec = levels_per_activation(f, params, x, {"avg_pool*": ChaoticLight(bits=4)})
raw = level_logits(spec)                              # what an optimizer moves

def loss(params, raw, key):                           # the likelihood's part is left to you
    outputs, kl = divergence(f, replace_levels(spec, raw))(key, params, x)
    return kl.mean() + (outputs**2).mean()

gradients = jax.grad(loss, (0, 1))(params, raw, jax.random.key(0))
```
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff import core
from jaxeff.photonics._light import noise_sigma, sigma_bounds
from jaxeff.photonics._photonic import carried, carry
from jaxeff.photonics._pooling import ChaoticLight, pooling_of, quant_relu
from jaxeff.program import Layer, Program, at_sites, check_settings, evaluate, trace
from jaxeff.program.reading import argument_leaves

_WANTED = "a ChaoticLight, such as ChaoticLight(0.5)"
Lights = Mapping[str, ChaoticLight]
Raw = dict[str, Float[Array, "..."]]
"""Unbounded numbers for the levels, by site."""


@core.validate(batch=core.parameter_tree)
def levels_per_activation(
    f: Callable[..., Any],
    params: Any,
    batch: Any,
    spec: Mapping[str, ChaoticLight | None],
    level: float = 0.5,
) -> dict[str, ChaoticLight]:
    """Returns a spec with one noise level for each pooled activation.

    Sharp edges:
        The prior's mean is the activation itself: the divergence prices quiet light, not intensity.
        Levels belong to places within an example: the first axis of a pooled activation is taken
        for the batch.
        It knows patterns made after pooling, of the Gaussian model; what correlated wavelength
        channels have in common (`ChaoticLight.channel`) it counts in each of them.

    Args:
        f: A pure function `f(params, *args)`.
        params: The parameters of `f`.
        batch: `args` as a tuple, or the only one of them, examples first; shapes are enough.
        spec: Settings of average poolings, as `jaxeff.photonic` takes them.
        level: Starting value of all noise levels, in [0, 1].

    Returns:
        A setting by site, its `noise` an array of the shape of the pooled activations of one
        example.

    Raises:
        TypeError: The spec isn't a mapping from patterns to `ChaoticLight`.
        ValueError: A pattern decides no average pooling, or a level is outside [0, 1].
    """
    check_settings(spec, ChaoticLight, _WANTED)
    core.check_number("level", level, 0, 1)
    program = trace(f, params, *core.as_arguments(batch))
    lights: Any = carried(spec, program)
    settings = {}
    for layer in program.sites:
        if layer.site in lights:
            (pooled,) = (v.aval for v in layer.outputs if not v.spread)
            # A level per place, shared by all examples: the hardware is set once, not for each
            # input.
            noise = jnp.full(pooled.shape[1:], level, pooled.dtype)
            settings[layer.site] = replace(lights[layer.site], noise=noise)
    return settings


@core.validate(spec=core.spec_of(ChaoticLight))
def level_logits(spec: Lights) -> Raw:
    """Returns unbounded numbers for the levels of a spec: logits, or logarithms if free."""
    return {
        site: jnp.log(light.noise) - (0 if light.model == "free" else jnp.log1p(-light.noise))
        for site, light in spec.items()
    }


@core.validate(spec=core.spec_of(ChaoticLight), raw=core.string_mapping)
def replace_levels(spec: Lights, raw: Mapping[str, Float[Array, "..."]]) -> dict[str, ChaoticLight]:
    """Sets the levels of a spec from unbounded numbers: their sigmoid, or exponential if free.

    Args:
        spec: A setting by site.
        raw: Result of `level_logits`.

    Raises:
        ValueError: The two name different sites.
    """
    if set(raw) != set(spec):
        raise ValueError(f"levels are those of {sorted(raw)}, settings of {sorted(spec)}.")
    return {
        site: replace(
            light, noise=(jnp.exp if light.model == "free" else jax.nn.sigmoid)(raw[site])
        )
        for site, light in spec.items()
    }


@core.validate(
    light=core.instance_of(ChaoticLight), intensity=core.real_array(nan=True, empty=True)
)
def light_divergence(
    intensity: Float[Array, "*shape"], light: ChaoticLight
) -> Float[Array, "*shape"]:
    """Computes the KL divergence of an activation's light from the noisiest light, in nats.

    ```python
    import jax.numpy as jnp

    from jaxeff.photonics import ChaoticLight, light_divergence

    intensity = jnp.array([1.0, 4.0])
    light_divergence(intensity, ChaoticLight(noise=0.2))  # nats: quiet light has its price
    assert light_divergence(intensity, ChaoticLight(noise=1.0)).tolist() == [0.0, 0.0]
    ```

    Args:
        intensity: Pooled activations.
        light: The setting.

    Returns:
        The divergence of each activation; zero where there is no light, hence no noise.
    """
    _, largest = sigma_bounds(intensity, light)
    noisy = largest > 0
    # KL between Gaussians of equal mean: (r^2 - 1)/2 - log r with the ratio r of deviations. An
    # intensity without noise contributes nothing; both `where`s keep NaN out of its gradient.
    ratio = jnp.where(noisy, noise_sigma(intensity, light) / jnp.where(noisy, largest, 1), 1)
    return (jnp.square(ratio) - 1) / 2 - jnp.log(ratio)


@core.validate()
def divergence(
    f: Callable[..., Any], spec: Mapping[str, ChaoticLight | None]
) -> Callable[..., Any]:
    """Adds to `jaxeff.photonic` the divergence of its noise, for the loss of variational inference.

    Variational inference over activations: the guide of a pooled activation is N(I, sigma) with
    sigma between the hardware's bounds, its prior N(I, sigma_max), the noisiest light of the same
    intensity. The divergence is then bounded too, by that of the quietest light.
    `ChaoticLight(model="free")` is the same guide without bounds.

    Args:
        f: A pure function `f(params, *args)`.
        spec: Spec for `jaxeff.photonic`, of average poolings.

    Returns:
        A pure function `g(key, params, *args) -> (outputs, nats)`, the divergence of each example,
        `[batch]`, summed over all activations.

    Raises:
        TypeError: The spec isn't a mapping from patterns to `ChaoticLight`.
        ValueError: On a call: as `jaxeff.photonic`; a site lies in a loop or branch, or a setting's
            pattern is made before pooling.
    """
    check_settings(spec, ChaoticLight, _WANTED)

    def g(key: PRNGKeyArray, *args: Any, **kwargs: Any) -> Any:
        core.single_key("the first argument, a key,", key)
        program = trace(f, *args, **kwargs)
        lights: Any = carried(spec, program)
        # A value inside a loop can't leave it, so its divergence would be missing from the sum.
        _check_reachable(lights, program)
        nats: list[Array] = []

        def rule(
            light: ChaoticLight, layer: Layer, site_key: PRNGKeyArray, *values: Any
        ) -> Sequence[Any]:
            i, _, pool = pooling_of(layer, values)
            intensity = pool(quant_relu(values[i], light.bits, light.full_scale))
            kl = light_divergence(intensity, light)
            # Independent activations: their divergences add; the batch stays, for losses are means
            # over it.
            nats.append(kl.sum(tuple(range(1, kl.ndim))))
            return carry(light, layer, site_key, *values)

        outputs = evaluate(program, at_sites(lights, rule), key, argument_leaves(args, kwargs))
        total = functools.reduce(jnp.add, nats) if nats else jnp.zeros(())
        return jax.tree.unflatten(program.out_tree, outputs), total

    return g


def _check_reachable(lights: Lights, program: Program) -> None:
    inside = sorted(set(lights) - {layer.site for layer in program.layers})
    if inside:
        raise ValueError(f"{', '.join(inside)} is in a loop or branch, whose light isn't counted.")
    before = sorted(site for site, light in lights.items() if light.pattern == "before")
    if before:
        raise ValueError(f"{', '.join(before)}: the divergence is that of patterns after pooling.")
