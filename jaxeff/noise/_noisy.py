"""`noisy`: a model with analog noise at chosen layers, as a transform of its function.

```python
import jax
from jaxeff.nn import small_classifier
from jaxeff.noise import Additive, Multiplicative, noisy

f, params, (x, y) = small_classifier()
g = noisy(f, {"conv*": Additive(0.3), "relu*": Multiplicative(0.1)})
logits = g(jax.random.key(0), params, x)
```

Sharp edges:
    Same key, same noise: split the key for another draw. A layer's noise depends only on the key
    and the layer's name, so making another layer noisy doesn't change it. What belongs to a device
    (drift, mismatch) depends on the device and the layer's name alone.
    `at="weights"` acts on the weights of dense and convolution layers, never on biases or on a
    normalization's scale. It draws noise for every use of a weight, as an analog read-out would,
    and in every iteration of a scan.
    Integer and boolean values (an argmax, an index) are left alone.
    An outer transform acts first on what enters a layer and last on what leaves it. Around
    `moments`, noise acts on means, and takes variances times its squared slope: exact for additive
    and multiplicative noise. Around `moments(f, method="linear")` and `integer` it is refused.
"""

import functools
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from jaxeff import core
from jaxeff.noise.models import (
    Draw,
    DrawnNoise,
    Noise,
    check_noise,
    counted_keys,
    drawn_together,
    fits,
    is_counted,
    perturb_at,
    place,
)
from jaxeff.program import Layer, Program, interpret_sites, plain_rule, resolve, site_numbers
from jaxeff.program.ir import Value

Ahead = dict[tuple[Layer, int], list[Array]]
"""Numbers by layer and number of its value."""


def draw_ahead(
    key: PRNGKeyArray, program: Program, perturbed: Mapping[Layer, tuple[Noise, list[int]]]
) -> Ahead:
    """Draws what models state for the layers of a program; bodies of loops draw in each step.

    `perturbed` has model and numbers of perturbed values, by layer.
    """
    if not is_counted(key):
        return {}
    wanted: list[tuple[Layer, int, list[Draw]]] = []
    for layer, (model, numbers) in perturbed.items():
        if not isinstance(model, DrawnNoise):
            continue
        described = layer.outputs if place(model) == "output" else layer.inputs
        for i in numbers:
            aval = described[i].aval
            if jnp.issubdtype(aval.dtype, jnp.floating):
                draws = list(model.draws(jax.ShapeDtypeStruct(aval.shape, aval.dtype)))
                if all(map(fits, draws)):
                    wanted.append((layer, i, draws))
    drawn_values: Ahead = {}
    # By the number of a model's draws: keys of one kind are derived together too.
    for count in {len(draws) for _, _, draws in wanted}:
        some = [one for one in wanted if len(one[2]) == count]
        names, uses = site_numbers([layer for layer, *_ in some])
        keys = counted_keys(key, (names, uses, [i for _, i, _ in some]))
        if count > 1:
            keys = jax.vmap(functools.partial(jax.random.split, num=count))(keys)
            keys = keys.reshape(-1)
        drawn = iter(drawn_together([draw for one in some for draw in one[2]], keys))
        for layer, i, draws in some:
            drawn_values[layer, i] = [next(drawn) for _ in draws]
    return drawn_values


@core.validate()
def noisy(
    f: Callable[..., Any], spec: Mapping[str, Noise | None], *, together: bool = True
) -> Callable[..., Any]:
    """Perturbs the layers of a model.

    Args:
        f: A pure function `f(params, *args)`.
        spec: Maps patterns of sites to noise models; the most specific pattern decides, and None
            leaves a layer alone (`jaxeff.program`).
        together: Whether the noise of many sites is drawn by one loop, which compiles in a tenth
            of the time that as many generators take. It is the same noise. False draws it where it
            is used, which holds less of it at once.

    Returns:
        A pure function `g(key, params, *args)` with the result of `f` under noise.

    Raises:
        TypeError: The spec isn't a mapping from patterns to noise models.
        ValueError: On the first call: a pattern matches or decides no site, two are equally
            specific at one, or a noise model names weights where none of its layers has any.
    """
    check_noise(spec)
    f = core.read_once(f)

    def g(key: PRNGKeyArray, *args: Any, **kwargs: Any) -> Any:
        core.single_key("the first argument, a key,", key)

        ahead: Ahead = {}

        def models(program: Program) -> Mapping[str, Noise]:
            chosen = resolve(spec, program, perturbs_layer, "noise to perturb")
            layers = [layer for layer in program.layers if chosen.get(layer.site) is not None]
            perturbed = {
                layer: (chosen[layer.site], _perturbed(layer, chosen[layer.site]))
                for layer in layers
                if layer.kind != "control flow"
            }
            if together:
                ahead.update(draw_ahead(key, program, perturbed))
            return chosen

        # The site's key is made of its name: a layer without noise changes no other's draws.
        def rule(model: Noise, layer: Layer, site_key: PRNGKeyArray, *values: Any) -> Sequence[Any]:
            def perturb(i: int, x: Any) -> Any:
                return _perturb(model, site_key, layer, i, ahead.get((layer, i)), x)

            inputs = list(values)
            if place(model) != "output":
                _perturb_all(model, perturb, layer, layer.inputs, inputs)
            outputs = list(plain_rule(layer, site_key, *inputs))
            if place(model) == "output":
                _perturb_all(model, perturb, layer, layer.outputs, outputs)
            return outputs

        return interpret_sites(f, models, rule, key, args, kwargs, "noisy")

    return g


def perturbed_inputs(layer: Layer, model: Noise) -> list[int]:
    """Finds the inputs of a layer that a model perturbs, as indices.

    ```python
    from jaxeff import trace
    from jaxeff.nn import small_classifier
    from jaxeff.noise import Additive, perturbed_inputs

    f, params, (x, y) = small_classifier()
    layers = {layer.site: layer for layer in trace(f, params, x).sites}
    inputs = perturbed_inputs(layers["fc1"], Additive(0.1, at="weights"))
    assert inputs == list(layers["fc1"].weights)
    ```
    """
    indices: Sequence[int] = ()
    if place(model) == "input":
        indices = layer.data
    if place(model) == "weights" and layer.kind == "linear":
        indices = layer.weights
    # No model describes noise of complex numbers.
    return [i for i in indices if layer.inputs[i].is_real_signal]


def _perturbed(layer: Layer, model: Noise) -> list[int]:
    """Finds the values of a layer that a model perturbs, as indices: its inputs or its outputs."""
    if place(model) != "output":
        return perturbed_inputs(layer, model)
    return [i for i, v in enumerate(layer.outputs) if v.is_real_signal]


def perturbs_layer(layer: Layer, model: Noise) -> bool:
    """Tells whether a model has something to perturb at a layer.

    Other transforms ask so which layers a model can act on:

    ```python
    from jaxeff import trace
    from jaxeff.nn import small_classifier
    from jaxeff.noise import Additive, perturbs_layer

    f, params, (x, y) = small_classifier()
    layers, read = trace(f, params, x).sites, Additive(0.1, at="weights")
    sites = [layer.site for layer in layers if perturbs_layer(layer, read)]
    assert "fc1" in sites and "relu" not in sites
    ```
    """
    return bool(_perturbed(layer, model))


def _perturb_all(
    model: Noise,
    perturbation: Callable[[int, Any], Any],
    layer: Layer,
    described: Sequence[Value],
    values: list[Any],
) -> None:
    """Perturbs some of a layer's values in place, and the variances that belong to them.

    Given a draw, a perturbation is a function of each entry: y = x + n, y = x (1 + n). Its slope s
    at the mean takes a variance v to s^2 v, which is exact for all that are lines, additive and
    multiplicative noise among them.
    """
    variances = [i for i, v in enumerate(described) if v.spread]
    numbers = _perturbed(layer, model)
    for i in numbers:
        perturb = functools.partial(perturbation, i)
        # A mean and its variance are of one shape, and of one parameter where they are of any.
        v, path = described[i], described[i].path
        of_it = [j for j in variances if _alike(described[j], v.aval.shape, path)]
        alone = sum(_alike(described[j], v.aval.shape, path) for j in numbers) == 1
        if not of_it or not _is_real(values[i]):
            values[i] = perturb(values[i])
        elif alone and len(of_it) == 1:
            # Perturbations act entry by entry, so the tangent of ones is the slope of each entry,
            # for the very draw that perturbs the mean.
            values[i], slope = jax.jvp(perturb, (values[i],), (jnp.ones_like(values[i]),))
            values[of_it[0]] = slope * slope * values[of_it[0]]
        else:
            raise ValueError(
                f"noisy: {layer.site!r} has several random values of one shape, so it isn't known "
                f"whose variance {model!r} changes; take moments(f, noise=spec), or put the noise "
                "on the results of the layers before it."
            )


def _alike(value: Value, shape: tuple[int, ...], path: str) -> bool:
    return value.aval.shape == shape and value.path == path


def _is_real(x: Any) -> bool:
    return bool(jnp.issubdtype(jnp.result_type(x), jnp.floating))


def _perturb(
    model: Noise, site_key: PRNGKeyArray, layer: Layer, i: int, numbers: Any, x: Any
) -> Any:
    """Perturbs the i-th value of a layer, unless it holds no real numbers."""
    if not _is_real(x):
        return x
    if numbers is not None and isinstance(model, DrawnNoise):
        return model.apply(x, *numbers)
    # CRC-32, not `hash`, which Python seeds per process: a device has the same number always.
    site = zlib.crc32(f"{layer.site}/{i}".encode())
    return perturb_at(jax.random.fold_in(site_key, i), model, x, site)


def monte_carlo(
    g: Callable[..., Any], samples: int, *, chunk: int | None = None
) -> Callable[..., Any]:
    """Evaluates a function that takes a random key several times.

    What doesn't depend on the key is computed once for all draws of a chunk.

    Monte Carlo dropout, for one:

    ```python
    import jax
    from jaxeff.nn import small_classifier
    from jaxeff.noise import Dropout, monte_carlo, noisy
    from jaxeff.uncertainty import decompose_logits

    f, params, (x, y) = small_classifier()
    h = monte_carlo(noisy(f, {"relu*": Dropout(0.15)}), 30)
    logits = h(jax.random.key(0), params, x)            # [samples, batch, classes]
    decompose_logits(logits).epistemic
    ```

    Args:
        g: `g(key, *args)`, as `jaxeff.noisy` returns it.
        samples: Number of draws.
        chunk: Draws evaluated together, for less memory; all of them if None.

    Returns:
        A pure function `h(key, *args)` of the results of `g`, each with a first axis of draws.

    Raises:
        TypeError: `g` is no function, or a number is none; when called: the key is none.
        ValueError: A number is below 1.
    """
    core.check_function("monte_carlo: g", g, "g(key, params, *inputs)")
    core.check_count("samples", samples)
    if chunk is not None:
        core.check_count("chunk", chunk)

    def h(key: PRNGKeyArray, *args: Any, **kwargs: Any) -> Any:
        core.check_key("monte_carlo: key", key)
        # The keys don't depend on `chunk`, so neither do the draws.
        keys = jax.random.split(key, samples)
        if chunk is None or chunk >= samples:
            # Mapped over keys alone: what doesn't depend on them has no axis of draws, and is
            # computed once. `lax.map` does the same chunk after chunk, in the memory of one.
            return jax.vmap(lambda k: g(k, *args, **kwargs))(keys)
        return jax.lax.map(lambda k: g(k, *args, **kwargs), keys, batch_size=chunk)

    return h
