"""Damage by fewer bits at each site: quantization errors, divergences, curvature of the loss.

By the curvature of the loss:

```python
import jax

from jaxeff.compression import hessian_sensitivity, hessian_trace, quantization_errors
from jaxeff.nn import small_classifier
from jaxeff.training import cross_entropy

f, params, (x, y) = small_classifier()
loss = cross_entropy(f)

def of_params(params, x, y):
    return loss(jax.random.key(0), params, None, (x, y), 0)[0]

sites = ("conv1", "fc2")
trace = hessian_trace(jax.random.key(1), of_params, params, (x[:64], y[:64]), sites, probes=8)
sensitivity = hessian_sensitivity(trace, quantization_errors(f, params, x[:64], sites))
```
"""

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff import core
from jaxeff.compression import _bit_policy as policies
from jaxeff.compression._quantized import of_inputs, settings_of
from jaxeff.compression.numerics import LayerQuantization
from jaxeff.compression.quantizers import Uniform
from jaxeff.program import Layer, Program, evaluate, plain_rule, trace
from jaxeff.training import divergences

Table = Float[np.ndarray, "sites widths"]


class BitSensitivity(NamedTuple):
    """The damage of quantizing one array of one site, the others left alone.

    Attributes:
        sites: The layers.
        widths: The bit widths.
        weights: Damage of so many bits in the weights of a site; None where it wasn't measured, 0
            for a layer without weights.
        activations: Damage in the same form, of the layers' inputs.
        weights_error: Standard error of `weights`; None where there is none.
        activations_error: Standard error of `activations`.
    """

    sites: tuple[str, ...]
    widths: tuple[int, ...]
    weights: Table | None = None
    activations: Table | None = None
    weights_error: Table | None = None
    activations_error: Table | None = None


def check_widths(widths: Iterable[int]) -> tuple[int, ...]:
    """Checks that bit widths are whole numbers from 1 to 16 in rising order."""
    rising = tuple(widths)
    in_bounds = all(isinstance(w, int | np.integer) and 1 <= w <= 16 for w in rising)
    if not rising or not in_bounds or list(rising) != sorted(set(rising)):
        raise ValueError(f"widths must be rising whole numbers from 1 to 16, not {rising}.")
    return tuple(int(w) for w in rising)


DECIBELS_PER_BIT = 20 * math.log10(2)


class QuantizationErrors(NamedTuple):
    """Mean squares of the arrays of each site and of their quantization's errors.

    Attributes:
        sites: The layers.
        widths: The bit widths.
        weights: Mean squared error of the weights in each width; 0 where there are none.
        activations: Mean squared error in the same form, of the layers' inputs.
        weights_signal: Mean square of the weights themselves.
        activations_signal: Mean square of the layers' inputs themselves.
    """

    sites: tuple[str, ...]
    widths: tuple[int, ...]
    weights: Float[np.ndarray, "sites widths"]
    activations: Float[np.ndarray, "sites widths"]
    weights_signal: Float[np.ndarray, " sites"]
    activations_signal: Float[np.ndarray, " sites"]


@core.validate(args=core.input_batch, method=core.function_of_form("method(bits)"))
def quantization_errors(
    f: Callable[..., Any],
    params: Any,
    args: Any,
    sites: Sequence[str],
    widths: Sequence[int] = (1, 2, 3, 4, 5, 6, 7, 8),
    *,
    method: policies.Method = Uniform,
) -> QuantizationErrors:
    """Quantizes every array of every site in every width, in the model as it is.

    Args:
        f: A pure function `f(params, *args)`.
        params: The parameters of `f`.
        args: Further arguments of `f` as a tuple, or the only one of them.
        sites: The layers.
        widths: Bit widths, rising, 1 to 16.
        method: Function from a bit width to a quantizer.

    Raises:
        ValueError: A width that isn't one, a site that there isn't, that multiplies nothing, or
            lies inside a loop.
    """
    sites, widths = tuple(sites), check_widths(widths)
    args = core.as_arguments(args)
    model = policies.InWidths(f, sites, widths, method=method)
    squares = np.asarray(_squares(model, params, args), float)
    return QuantizationErrors(
        sites, widths, squares[0, :, 1:], squares[1, :, 1:], squares[0, :, 0], squares[1, :, 0]
    )


@core.validate(errors=core.instance_of(QuantizationErrors))
def noise_to_signal(errors: QuantizationErrors) -> BitSensitivity:
    """Computes the noise-to-signal ratio of every site in every width; 0 for an array of zeros.

    Measured errors tell what needs its bits:

    ```python
    import jaxeff
    from jaxeff.compression import allocate_bits, noise_to_signal, quantization_errors
    from jaxeff.nn import small_classifier

    f, params, (x, y) = small_classifier()
    sites, cost = ("conv1", "fc1", "fc2"), jaxeff.cost(f, params, x[:1])
    ratios = noise_to_signal(quantization_errors(f, params, x[:32], sites, widths=(2, 4, 8)))
    assert (ratios.weights[:, 0] > ratios.weights[:, 2]).all()        # two bits, and eight
    spec = allocate_bits(ratios, cost, 4 * sum(row.weights for row in cost.layers))
    ```

    Args:
        errors: From `quantization_errors`.
    """

    def over(noise: np.ndarray, signal: np.ndarray) -> np.ndarray:
        signal = signal[:, None]
        return np.divide(noise, signal, out=np.zeros_like(noise), where=signal > 0)

    return BitSensitivity(
        errors.sites,
        errors.widths,
        over(errors.weights, errors.weights_signal),
        over(errors.activations, errors.activations_signal),
    )


@core.validate(sizes=core.string_mapping, decibels=core.non_negative, slope=core.positive)
def signal_to_noise_bits(
    sizes: Mapping[str, float], decibels: float, *, slope: float = DECIBELS_PER_BIT
) -> dict[str, float]:
    """Computes the bits of every site with the least storage for a given ratio at the result.

    The signal-to-quantization-noise ratio of a site is E[x^2] / E[(Q(x) - x)^2], about `slope`
    decibels per bit. Noise-to-signal ratios of the sites add up to that of the result (Lin et al.,
    section 3), so `noise_to_signal` is a sensitivity that `allocate_bits` takes.

    Without measuring anything, the least storage with a given ratio at the result has a closed
    form. With lambda_i = 1 / SQNR_i, a site of n_i values takes b_i = -(10 / slope) log10(lambda_i)
    bits, and minimising sum_i n_i b_i subject to sum_i lambda_i <= 1 / SQNR gives, by its
    Lagrangian, lambda_i = n_i / (SQNR sum_j n_j): a site with ten times as many values takes 10 /
    slope bits less.

    Bits by the sizes of the layers alone:

    ```python
    import jaxeff
    from jaxeff.compression import Int, signal_to_noise_bits
    from jaxeff.nn import small_classifier

    f, params, (x, y) = small_classifier()
    layers = jaxeff.cost(f, params, x[:1]).layers
    bits = signal_to_noise_bits({row.site: row.weights for row in layers if row.weights}, 20.0)
    spec = {site: Int(round(each), 8) for site, each in bits.items()}
    ```

    Args:
        sizes: Values to store, by site; or their products, for the least work.
        decibels: The signal-to-quantization-noise ratio at the result.
        slope: Decibels that a bit adds at each site.

    Returns:
        Bits by site, not rounded; below 1 where a site could do without.

    Raises:
        ValueError: There are no sites, or a size or the slope isn't positive.

    References:
        Lin, Talathi and Annapureddy, "Fixed Point Quantization of Deep Convolutional Networks",
        arXiv:1511.06393.
    """
    if not sizes:
        raise ValueError("signal_to_noise_bits needs at least one site.")
    for site, size in sizes.items():
        core.check_number(f"the size of {site!r}", size, above=0)
    # Minimal total size for given noise at the result (Lagrange): a site may add noise in
    # proportion to its share of the size, so SNR_i = target - 10 log10(share_i).
    total = sum(sizes.values())
    return {
        site: (decibels - 10 * math.log10(size / total)) / slope for site, size in sizes.items()
    }


@functools.partial(jax.jit, static_argnums=0)
def _squares(
    model: policies.InWidths, params: Any, args: tuple[Any, ...]
) -> Float[Array, "two sites widths"]:
    """Computes mean squares and mean squared errors of weights and of activations, by site."""
    f, sites, widths = model.f, model.sites, model.widths
    program = trace(f, params, *args)
    settings = multiplying(sites, program)
    sums = {site: {"weight": [], "activation": []} for site in settings}  # type: ignore[var-annotated]

    def rule(layer: Layer, key: Any, *values: Any) -> Sequence[Any]:
        for _, tensor, i in (
            of_inputs(layer, settings[layer.site], values) if (layer.site in settings) else ()
        ):
            x = values[i]

            def square(bits: Any, x: Any = x, tensor: Any = tensor) -> Array:
                # Over traced widths by `lax.map`: one program, and one array at a time in memory.
                error = model.method(bits).quantize(x, tensor) - x
                return jnp.sum(jnp.square(error.astype(jnp.float32)))

            errors = jax.lax.map(square, jnp.asarray(widths))
            signal = jnp.sum(jnp.square(x.astype(jnp.float32)))[None]
            sums[layer.site][tensor.role].append((jnp.concatenate([signal, errors]), x.size))
        return plain_rule(layer, key, *values)

    evaluate(program, rule, None, jax.tree.leaves(((params, *args), {})))

    # Over all elements of a site's arrays, which may have several sizes.
    def mean(parts: list[tuple[Array, int]]) -> Array:
        if not parts:
            return jnp.zeros(1 + len(widths))
        total: Array = sum(s for s, _ in parts) / sum(n for _, n in parts)  # type: ignore[assignment]
        return total

    return jnp.stack(
        [jnp.stack([mean(sums[site][role]) for site in sites]) for role in ("weight", "activation")]
    )


def multiplying(sites: Sequence[str], program: Any) -> dict[str, LayerQuantization]:
    """Makes a setting that quantizes weights and activations, for every site."""
    settings = settings_of(
        {site: LayerQuantization(Uniform(8), Uniform(8)) for site in sites}, program
    )
    outside = {layer.site for layer in program.layers}
    for site in sites:
        if site not in settings or site not in outside:
            raise ValueError(
                f"{site!r} must be one layer outside loops and branches, where its arrays can be "
                "measured."
            )
    return {site: settings[site] for site in sites}


@core.validate(
    x=core.input_batch, method=core.function_of_form("method(bits)"), at_once=core.static_integer()
)
@core.forwards(policies.InWidths, policies.WidthOptions)
def kl_sensitivity(
    f: Callable[..., Any],
    params: Any,
    x: Any,
    sites: Sequence[str],
    widths: Sequence[int] = (1, 2, 3, 4, 5, 6, 7, 8),
    *,
    state: Any = None,
    **options: Unpack[policies.WidthOptions],
) -> BitSensitivity:
    """Measures every layer in every width.

    S(l, b) = mean over inputs of KL(f || f with layer l in b bits), as Galen measures it after
    ZeroQ. Weights and activations are measured apart. All layers and widths are policies of one
    compiled program, in which widths are numbers.

    Sharp edge: damages of several layers are taken to add up; KL is of second order in small
    changes.

    ```python
    import jaxeff
    from jaxeff.compression import allocate_bits, kl_sensitivity, quantized
    from jaxeff.nn import small_classifier

    f, params, (x, y) = small_classifier()
    sensitivity = kl_sensitivity(f, params, x[:64], ("conv1", "fc1", "fc2"), widths=(2, 4, 8))
    cost = jaxeff.cost(f, params, x[:1])
    spec = allocate_bits(sensitivity, cost, 4 * 4 * cost.macs, unit="bops")  # as of 4 x 4 bits
    quantized(f, spec)(params, x)
    ```

    Args:
        f: A classifier `f(params, x) -> logits`; with a state `f(params, state, x) -> (logits, new
            state)`.
        params: The parameters of `f`.
        x: Inputs, a few hundred of them; they are evaluated at once.
        sites: The layers.
        widths: Bit widths, rising, 1 to 16.
        state: The model's state, which stays as it is.
        **options: `method`, a function from a bit width to a quantizer; and `at_once`, the number
            of policies evaluated side by side, by `vmap`.

    Returns:
        Divergences in nats, mean over inputs, with the standard error over them.

    Raises:
        ValueError: No sites or one given twice, a width that isn't one, or a site that there isn't
            or that multiplies nothing.

    References:
        Krieger et al., "Galen: Hardware-specific Automatic Compression of Neural Networks",
        arXiv:2212.07818. Cai et al., "ZeroQ", arXiv:2001.00281.
    """
    sites, widths = tuple(sites), check_widths(widths)
    if not sites or len(set(sites)) < len(sites):
        raise ValueError(f"sites must be layers that differ, got {list(sites)}.")
    model = policies.InWidths(f, sites, widths, **options)
    kl = np.asarray(_divergences(model, params, state, x), float)
    return _over_inputs(sites, widths, kl)


def _over_inputs(
    sites: tuple[str, ...], widths: tuple[int, ...], kl: Float[np.ndarray, "policies inputs"]
) -> BitSensitivity:
    """Takes the means of divergences over inputs, and their standard errors."""
    mean = kl.mean(-1).reshape(2, len(sites), len(widths))
    # Over inputs. All policies share these, so damages are compared more exactly than this.
    scatter = kl.std(-1, ddof=1) if kl.shape[-1] > 1 else np.full(len(kl), np.nan)
    error = scatter.reshape(mean.shape) / math.sqrt(kl.shape[-1])
    return BitSensitivity(sites, widths, mean[0], mean[1], error[0], error[1])


def one_at_a_time(sites: int, widths: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Lists the policies that quantize one array of one site: bits of weights, of activations.

    In the order of weights and activations, sites, widths.
    """
    alone = np.full((sites * len(widths), sites), policies.FLOAT, np.int32)
    for i in range(sites):
        alone[i * len(widths) : (i + 1) * len(widths), i] = widths
    others = np.full_like(alone, policies.FLOAT)
    return np.concatenate([alone, others]), np.concatenate([others, alone])


@functools.partial(jax.jit, static_argnums=0)
def _divergences(model: policies.InWidths, params: Any, state: Any, x: Any) -> Array:
    args = (params, x) if state is None else (params, state, x)
    # FLOAT is a width of the look-up too: that of the sites a policy leaves alone.
    evaluated = policies.under_policies(
        replace(model, widths=(*model.widths, policies.FLOAT)), *args
    )
    changes = jax.tree.map(jnp.asarray, one_at_a_time(len(model.sites), model.widths))
    nats = divergences(
        model.f,
        lambda bits: evaluated(*bits),
        params,
        x,
        changes,
        state=state,
        at_once=model.at_once,
    )
    return nats.reshape(len(nats), -1)


ROLES = ("weight", "activation")


class HessianTrace(NamedTuple):
    """Traces of the loss's Hessian with respect to what each site multiplies.

    Attributes:
        sites: The layers.
        weights: Trace over the weights of each.
        activations: Trace over what each reads.
        weights_error: Standard error of `weights` over the draws; NaN for a single one.
        activations_error: Standard error of `activations`.
    """

    sites: tuple[str, ...]
    weights: Float[np.ndarray, " sites"]
    activations: Float[np.ndarray, " sites"]
    weights_error: Float[np.ndarray, " sites"]
    activations_error: Float[np.ndarray, " sites"]


@core.validate(
    loss=core.function_of_form("loss(params, *args)"),
    args=core.input_batch,
    probes=core.static_integer(),
    at_once=core.static_integer(),
)
def hessian_trace(
    key: PRNGKeyArray,
    loss: Callable[..., Any],
    params: Any,
    args: Any,
    sites: Sequence[str],
    *,
    probes: int = 32,
    at_once: int = 1,
) -> HessianTrace:
    """Estimates the traces of every site.

    Args:
        key: Random key of the signs.
        loss: `loss(params, *args)`, a scalar that calls the model.
        params: The parameters.
        args: Further arguments, such as `(x, y)`, as a tuple, or the only one of them.
        sites: The model's layers, dot products and convolutions.
        probes: Random directions.
        at_once: Number of them evaluated side by side, by `vmap`.

    Raises:
        ValueError: The loss isn't a scalar, or a site isn't there, multiplies nothing, or lies
            inside a loop.
    """
    sites = tuple(sites)
    args = core.as_arguments(args)
    shape = jax.eval_shape(loss, params, *args)
    if getattr(shape, "shape", None) != ():
        raise ValueError(f"the loss must be a scalar, not {shape}.")
    # The sample's standard deviation over probes gives the standard error of the mean.
    keys = jax.random.split(key, probes)
    drawn = np.asarray(_products(loss, sites, at_once, keys, params, args), float)
    error = drawn.std(0, ddof=1) if probes > 1 else np.full(drawn.shape[1:], np.nan)
    return HessianTrace(sites, *drawn.mean(0), *(error / math.sqrt(probes)))


@core.validate(trace=core.instance_of(HessianTrace), errors=core.instance_of(QuantizationErrors))
def hessian_sensitivity(trace: HessianTrace, errors: QuantizationErrors) -> BitSensitivity:
    """Computes the second-order rise of the loss, (tr(H) / 2) times the mean squared errors.

    tr(H_l) = E[v^T H v] over random signs v (Hutchinson): one product of the Hessian with a vector
    per draw, for all sites at once, the derivative of the gradient along v. A change Delta of n
    values costs about (1/2) Delta^T H Delta, on average over directions (tr(H) / 2n) |Delta|^2;
    HAWQ-V2 ranks policies by the sum of that over layers, without the half (eq. 2.11), for Delta =
    Q(W) - W.

    Sharp edges:
        The signs of one draw cover all sites; what these have to do with each other adds to the
        standard error, not to the mean.
        A trace may be negative away from a minimum; then fewer bits look like a gain.
        The curvature by activations is that of the mean loss over the batch.

    Args:
        trace: From `hessian_trace`.
        errors: From `quantization_errors`, of the same sites.

    Returns:
        In units of the loss, with the traces' standard errors.

    Raises:
        ValueError: They are of different sites.

    References:
        Dong et al., "HAWQ-V2: Hessian Aware trace-Weighted Quantization of Neural Networks",
        arXiv:1911.03852. Hutchinson, Communications in Statistics 18 (1989).
    """
    if trace.sites != errors.sites:
        raise ValueError(
            f"The traces are of {list(trace.sites)}, the errors of {list(errors.sites)}."
        )

    def times(of: np.ndarray, squares: np.ndarray) -> np.ndarray:
        # The mean squared error already has the 1 / n of (tr(H) / 2n) |Delta|^2.
        return 0.5 * of[:, None] * squares

    return BitSensitivity(
        errors.sites,
        errors.widths,
        times(trace.weights, errors.weights),
        times(trace.activations, errors.activations),
        times(trace.weights_error, errors.weights),
        times(trace.activations_error, errors.activations),
    )


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _products(
    loss: Any, sites: tuple[str, ...], at_once: int, keys: Any, params: Any, args: tuple[Any, ...]
) -> Float[Array, "probes two sites"]:
    """Computes v^T H v of every draw, by weights or activations and by site."""
    program = trace(loss, params, *args)
    leaves = jax.tree.leaves(((params, *args), {}))
    settings = multiplying(sites, program)
    zeros = _zeros(program, settings)

    def moved(by: dict[str, dict[str, Array]]) -> Array:
        def rule(layer: Layer, key: Any, *values: Any) -> Sequence[Any]:
            inputs = list(values)
            if layer.site in settings:
                for _, tensor, i in of_inputs(layer, settings[layer.site], values):
                    # A zero added to each array: the derivative by it is that by the array,
                    # also for activations, which are no arguments of the loss.
                    inputs[i] = inputs[i] + by[layer.site][f"{tensor.role} {i}"]
            return plain_rule(layer, key, *inputs)

        (value,) = evaluate(program, rule, None, leaves)
        return value

    def product(key: PRNGKeyArray) -> Array:
        arrays, structure = jax.tree.flatten(zeros)
        signs = [
            jax.random.rademacher(k, a.shape, a.dtype)
            for k, a in zip(jax.random.split(key, len(arrays)), arrays, strict=True)
        ]
        v = jax.tree.unflatten(structure, signs)
        # Forward over reverse: H v costs about two gradients and never forms H.
        _, hv = jax.jvp(jax.grad(moved), (zeros,), (v,))
        dots = jax.tree.map(lambda a, b: jnp.sum((a * b).astype(jnp.float32)), v, hv)

        def of(site: str, role: str) -> Array:
            parts = [dot for name, dot in dots[site].items() if name.startswith(role)]
            return sum(parts, jnp.zeros(()))

        return jnp.stack([jnp.stack([of(site, role) for site in sites]) for role in ROLES])

    curvatures: Array = jax.lax.map(product, keys, batch_size=at_once if at_once > 1 else None)
    return curvatures


def _zeros(program: Program, settings: Any) -> dict[str, dict[str, Array]]:
    """Makes zeros like what each site multiplies: the point of no change."""
    zeros: dict[str, dict[str, Array]] = {}
    for layer in program.layers:
        if layer.site in settings:
            avals = [jnp.zeros(v.aval.shape, v.aval.dtype) for v in layer.inputs]
            read = of_inputs(layer, settings[layer.site], avals)
            zeros[layer.site] = {f"{t.role} {i}": avals[i] for _, t, i in read}
    return zeros
