"""Losses and specs that prepare a network for noise: growing levels, VANT, distillation, bits.

`incremental_noise` changes noise levels during training, by any schedule; by `variance_aware`
training every image sees a level of its own; by `distilled` a noisy student learns from a clean
teacher; `relu_quantization` has what Klein's thesis sets for quantization-aware training.

Sharp edges:
    Of VANT a normal draw may be negative. As a standard deviation of symmetric noise -s is the same
    as s, so its absolute value is returned.

References:
    Wang et al., "Variance-Aware Noisy Training", arXiv:2503.16183.
    Hinton, Vinyals and Dean, "Distilling the Knowledge in a Neural Network", arXiv:1503.02531.
    (`jaxeff.bayes.distill` is another method, which keeps a posterior's disagreement.)
    Wang et al., "Hardening neural networks against noise", arXiv:2501.14531.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from jaxeff import core
from jaxeff.compression import Int
from jaxeff.noise import Noise
from jaxeff.training import LabelledLoss, Loss, count_examples, label_loss, normalized_call


@core.validate(factor=core.non_negative)
def scale_levels(spec: Any, factor: Any) -> Any:
    """Multiplies every level of a noise specification.

    ```python
    from jaxeff.hardening import scale_levels
    from jaxeff.noise import Additive

    halfway = scale_levels({"conv*": Additive(0.5), "fc*": None}, 0.5)
    assert halfway == {"conv*": Additive(0.25), "fc*": None}
    ```

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


@core.validate(
    loss_at=core.function_of_form("loss_at(level)"),
    schedule=core.function_of_form("schedule(step)"),
)
def incremental_noise(
    loss_at: Callable[[Any], Loss], schedule: optax.Schedule
) -> Callable[[Any], Loss]:
    """Makes noisy training whose levels follow a schedule of the training step.

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
    levels of `scale_levels`.

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


ALPHA = 0.45
"""The published calibration of the level's distribution to the hardware's noise."""
THETA_PER_SIGMA = 0.4
"""The published rule of thumb: theta is about this times sigma."""
FORMS = ("half_normal", "normal")


class VariableLevel(NamedTuple):
    """Distribution of the level: the setting of `variance_aware`, a pytree that can be swept.

    Attributes:
        sigma: The hardware's nominal noise level.
        theta: Spread of the levels, in the unit of `sigma`; with 0 and `alpha` 1 it is plain noisy
            training.
        alpha: Calibrates the centre of the distribution, without unit.
    """

    sigma: Float[Array, ""] | float
    theta: Float[Array, ""] | float
    alpha: Float[Array, ""] | float = ALPHA


@core.validate(
    sigma=core.non_negative,
    theta=core.non_negative,
    batch=core.static_integer(),
    alpha=core.non_negative,
)
def vant(
    key: jax.Array,
    sigma: Float[Array, ""] | float,
    theta: Float[Array, ""] | float,
    batch: int,
    *,
    alpha: Float[Array, ""] | float = ALPHA,
    form: str = "half_normal",
) -> Float[Array, " batch"]:
    """Draws a noise level for each image of a batch.

    A level is drawn per image and shared by all layers, afresh in every step. It is published in
    two forms: the text draws it from N(alpha sigma, theta), the authors' code takes alpha sigma +
    theta |N(0, 1)|, whose mean is larger by 0.8 theta. The code's is the default, since the
    published figures are its.

    ```python
    import jax

    from jaxeff.hardening import vant

    levels = vant(jax.random.key(0), sigma=1.0, theta=0.4, batch=1000)
    assert levels.min() > 0.45                             # alpha sigma, of the half-normal form
    assert abs(levels.mean() - (0.45 + 0.8 * 0.4)) < 0.03
    ```

    Args:
        key: Random key.
        sigma: The hardware's nominal noise level.
        theta: Spread of the levels.
        batch: Number of images.
        alpha: Calibrates the centre of the distribution.
        form: "half_normal" for `alpha sigma + theta |N(0, 1)|`; "normal" for the absolute value of
            `N(alpha sigma, theta)`, theta being a standard deviation.

    Returns:
        Standard deviations, none negative.

    Raises:
        ValueError: A number is negative, NaN or infinite, or there is no such form.
    """
    core.check_choice("form", form, FORMS)
    for name, value in (("sigma", sigma), ("theta", theta), ("alpha", alpha)):
        core.check_number(name, value, low=0)
    normal = jax.random.normal(key, (batch,))
    if form == "half_normal":
        return alpha * sigma + theta * jnp.abs(normal)
    # Symmetric noise of a negative level is that of its absolute value.
    return jnp.abs(alpha * sigma + theta * normal)


@core.validate(loss_at=core.function_of_form("loss_at(sigma)"), ramp_steps=core.static_integer(0))
def variance_aware(
    loss_at: Callable[[Float[Array, " batch"]], Loss],
    *,
    form: str = "half_normal",
    ramp_steps: int = 0,
) -> Callable[[VariableLevel], Loss]:
    """Makes noisy training with a level per image.

    Every image sees a noise level of its own (VANT):

    ```python
    import jax
    import optax

    from jaxeff.hardening import VariableLevel, variance_aware
    from jaxeff.nn import small_classifier
    from jaxeff.noise import Additive, noisy
    from jaxeff.training import cross_entropy, fit

    f, params, data = small_classifier()

    def noise_per_image(levels):                               # [batch]
        spec = {"*": Additive(levels, along="sample")}
        return cross_entropy(noisy(f, spec), keyed=True)

    loss = variance_aware(noise_per_image)(VariableLevel(sigma=1.0, theta=0.4))
    fit(jax.random.key(0), loss, params, data, optimizer=optax.adam(1e-2), epochs=2, batch_size=32)
    ```

    Args:
        loss_at: The loss of a batch whose images have these noise levels.
        form: The distribution of levels, see `vant`.
        ramp_steps: Updates of plain noisy training before VANT, during which the level of all
            images grows evenly from 0 to `sigma`; the thesis trains ResNets so.

    Returns:
        The loss of a `VariableLevel`.
    """
    core.check_choice("form", form, FORMS)

    def at(setting: VariableLevel) -> Loss:
        def loss(key: Any, params: Any, state: Any, batch: Any, step: Any) -> Any:
            # Levels have a key of their own: drawn with the noise's, they would be correlated with
            # it.
            level_key, key = jax.random.split(key)
            sigma, theta, alpha = setting
            size = count_examples(batch)
            levels = vant(level_key, sigma, theta, size, alpha=alpha, form=form)
            if ramp_steps:
                # Selected, not branched: the step is traced, and both phases are one program.
                levels = jnp.where(step < ramp_steps, sigma * step / ramp_steps, levels)
            return loss_at(levels)(key, params, state, batch, step)

        return loss

    return at


@core.validate(
    teacher=core.function_of_form("teacher(inputs)"),
    temperature=core.positive,
    weight=core.probability,
)
def distilled(
    f: Callable[..., Any],
    teacher: Callable[[Any], Any],
    *,
    temperature: float = 4.0,
    weight: float = 0.9,
    keyed: bool = False,
    mutable: bool = False,
) -> Loss:
    """Makes the loss of a student that learns from labels and from another network.

    ```python
    import functools

    from jaxeff.hardening import distilled
    from jaxeff.nn import small_classifier
    from jaxeff.noise import Additive, noisy

    f, params, data = small_classifier()
    teacher = functools.partial(f, params)                      # trained without noise; x -> logits
    loss = distilled(noisy(f, {"*": Additive(0.5)}), teacher, keyed=True)       # for `fit`
    ```

    The loss is `(1 - weight) CE(labels, student) + weight T^2 KL(softmax(teacher / T) ||
    softmax(student / T))`; T^2 keeps the gradient's size independent of the temperature T.

    Args:
        f: The student, `f(params, x) -> logits` of shape `[batch, classes]`.
        teacher: `teacher(x) -> logits`; no gradient reaches it.
        temperature: Softens both distributions.
        weight: Share of the teacher, 0 to 1.
        keyed: Whether `f` takes a random key first.
        mutable: Whether `f` takes a state after its parameters and returns (logits, new state).

    Returns:
        A loss like that of `jaxeff.training.cross_entropy`, with metrics "accuracy" and
        "divergence", the mean KL divergence in nats at the given temperature.

    Raises:
        ValueError: The temperature isn't positive, or the weight not between 0 and 1.
    """
    core.check_number("temperature", temperature, low=1e-6)

    call = normalized_call(f, keyed=keyed, mutable=mutable)

    def loss(key: Any, params: Any, state: Any, batch: Any, step: Any) -> tuple[Any, Any]:
        x, labels = batch
        logits, state = call(key, params, state, x)
        hard = label_loss(logits, labels)
        # A target: no gradient reaches the teacher, even if it shares what is trained.
        taught = jax.nn.log_softmax(jax.lax.stop_gradient(teacher(x)) / temperature)
        learned = jax.nn.log_softmax(logits / temperature)
        soft = optax.losses.kl_divergence_with_log_targets(learned, taught).mean()
        # Gradients of the soft part fall as 1 / T**2 (Hinton et al., section 2): made up for here.
        value = (1 - weight) * hard + weight * temperature**2 * soft
        # Of the true labels, at temperature 1: what the student is used for.
        accuracy = jnp.mean(jnp.argmax(logits, axis=-1) == labels)
        return value, ({"accuracy": accuracy, "divergence": soft}, state)

    return LabelledLoss(loss, lambda *args: call(*args)[0])


LARGEST = {4: 15.0, 8: 256.0}
"""Largest value of a constant scale of 1, by bit width, as published."""


@core.validate(
    bits=core.static_integer(1, 16), last=core.string, scale=core.positive, activations=core.string
)
def relu_quantization(
    bits: int, *, last: str, scale: float | None = None, activations: str = "relu*"
) -> dict[str, Int | None]:
    """Makes the settings of quantization-aware training.

    ```python
    from jaxeff.compression import initial_ranges, quantized, running
    from jaxeff.hardening import relu_quantization
    from jaxeff.nn import small_classifier
    from jaxeff.training import cross_entropy

    f, params, (x, y) = small_classifier()
    spec = relu_quantization(4, last="fc2", scale=0.5)
    loss = cross_entropy(quantized(f, spec))                        # constant scale

    spec = relu_quantization(4, last="fc2")
    loss = cross_entropy(running(f, spec), mutable=True)            # dynamic scale; the state that
    ranges = initial_ranges(f, params, x, spec)                     # `fit` starts from and returns
    logits, _ = running(f, spec, training=False)(params, ranges, x)
    ```

    Weights have one range per output channel, those of the last layer one for the whole tensor;
    only ReLUs' outputs are quantized among the activations. With a constant scale k the largest
    value is 15 k with 4 bits, whose values are then multiples of k, and 256 k with 8. Noise goes
    around the quantized network, `noisy(quantized(f, spec), ...)`: a ReLU's noise follows its
    rounding.

    Args:
        bits: Bit width of weights and activations.
        last: Site of the last layer.
        scale: The constant scale k of activations; None leaves their range open, to be found on
            every call by `quantized` or over a training by `jaxeff.compression.running`.
        activations: Pattern of the activations.

    Returns:
        A spec.

    Raises:
        ValueError: The scale isn't positive, or given for a bit width other than 4 and 8, for
            which the thesis names no largest value.
    """
    largest = None
    if scale is not None:
        core.check_number("scale", scale, low=1e-30)
        # The thesis states largest values, not steps; at other widths neither follows from it.
        if bits not in LARGEST:
            raise ValueError(
                f"A constant scale is defined for {sorted(LARGEST)} bits, not for {bits}; give the "
                "range itself: {activations: Int(bits, at='output', weights=False, range=...)}."
            )
        largest = scale * LARGEST[bits]
    # A name is more specific than a kind: for the last layer its own entry applies.
    return {
        last: Int(bits, per="tensor", activations=False, symmetric=False),
        "*:linear": Int(bits, activations=False, symmetric=False),
        activations: Int(bits, weights=False, at="output", activations_per="tensor", range=largest),
    }
