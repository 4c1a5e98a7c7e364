"""The networks of the hardening studies, quantized or not; a family is trained as one sweep."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import jaxeff
from experiments import trainable
from experiments.hardening.recipe import Family, Setting
from experiments.harness import Row, Run
from experiments.trainable import Images, load_images
from jaxeff.compression import initial_ranges, quantized, running
from jaxeff.hardening import VariableLevel, relu_quantization, sharpness_aware, variance_aware
from jaxeff.nn import VGG11, LeNet5, ResNet18
from jaxeff.noise import Additive, noisy
from jaxeff.robustness import noisy_accuracy
from jaxeff.training import cross_entropy, sweep

Model = Callable[..., Any]
Points = Literal["every", "products", "others"]
"""Slots at which noise acts: all, those behind multiply-accumulates, or the rest."""
NAMES = ("lenet5", "lenet5-bn", "vgg11", "resnet18")


@dataclass(frozen=True)
class Network(trainable.Network):
    """A network without its numbers."""

    last: str  # site of the last layer
    products: tuple[str, ...]  # slots that are the results of multiply-accumulates
    facts: dict[str, float]  # what the architecture table says of it

    def noise(self, sigma: Any) -> dict[str, Additive]:
        """Additive noise at every slot; a level, or one per image."""
        along = "sample" if jnp.ndim(sigma) else None
        return dict.fromkeys(self.slots, Additive(sigma, along=along))

    def at(self, points: Points) -> "Network":
        """The network with fewer slots."""
        kept = {"every": self.slots, "products": self.products,
                "others": tuple(set(self.slots) - set(self.products))}[points]  # fmt: skip
        return replace(self, slots=tuple(slot for slot in self.slots if slot in kept))


@functools.cache
def build(name: str, shape: tuple[int, int, int], width: float = 1.0) -> Network:
    """A network by name, for images of a shape, with a share of its channels if it is large."""
    height, _, channels = shape

    def narrow(widths: tuple[int, ...]) -> Any:
        return tuple(max(1, round(width * full)) for full in widths)

    def make(rngs: nnx.Rngs) -> nnx.Module:
        if name.startswith("lenet5"):
            norm = name == "lenet5-bn"
            return LeNet5(10, channels, size=height, padding="VALID", batch_norm=norm, rngs=rngs)
        if name == "resnet18":
            return ResNet18(10, channels, widths=narrow((64, 128, 256, 512)), rngs=rngs)
        filters = narrow((64, 128, 256, 256, 512, 512, 512, 512))
        (hidden,) = narrow((4096,))
        # Dropout would be one layer with the ReLU before it, which has its noise in between.
        return VGG11(10, channels, dropout=0.0, widths=filters, hidden=hidden, rngs=rngs)

    base = trainable.trainable(make, shape)
    params, state = jax.eval_shape(base.init, jax.random.key(0))
    x = jax.ShapeDtypeStruct((1, *shape), jnp.float32)
    facts = {
        "macs_m": jaxeff.cost(base.evaluate, params, state, x).macs / 1e6,
        "parameters_m": sum(leaf.size for leaf in jax.tree.leaves(params)) / 1e6,
        "slots": len(base.slots),
    }
    layers = jaxeff.trace(base.evaluate, params, state, x).layers
    linear = {layer.site for layer in layers if layer.kind == "linear"}
    return Network(
        **vars(base), last="fc" if name == "resnet18" else "fc3", facts=facts,
        products=tuple(slot for slot in base.slots if slot in linear),
    )  # fmt: skip


def quantize(
    network: Network, kind: str, bits: int, scale: Any, shape: tuple[int, int, int]
) -> tuple[Model, Model, Callable[[jax.Array], tuple[Any, Any]]]:
    """A network under quantization-aware training.

    Args:
        network: The network.
        kind: "none", "constant" or "dynamic": how activations are scaled.
        bits: Bit width of weights and activations.
        scale: The constant scale.
        shape: Of one image.

    Returns:
        Training and evaluation of the quantized network, in the form of `network.train`, and its
        initial parameters and state.
    """
    if kind == "none":
        return network.train, network.evaluate, network.init
    if kind == "constant":
        spec = relu_quantization(bits, last=network.last, scale=scale)
        return quantized(network.train, spec), quantized(network.evaluate, spec), network.init
    spec = relu_quantization(bits, last=network.last)
    x = jnp.zeros((1, *shape))

    def init(key: jax.Array) -> tuple[Any, Any]:
        params, state = network.init(key)
        ranges = initial_ranges(network.train, params, (state, x), spec)
        return params, {"model": state, "ranges": ranges}

    def joined(g: Model) -> Model:
        """The ranges and the network's own state as one."""

        def f(params: Any, state: Any, x: Any) -> tuple[Any, Any]:
            (logits, model), ranges = g(params, state["ranges"], state["model"], x)
            return logits, {"model": model, "ranges": ranges}

        return f

    fixed = running(network.evaluate, spec, training=False)
    return joined(running(network.train, spec)), joined(fixed), init


BATCH = 500
"""Test images evaluated at once."""
# Large ones fill the device alone, and convolutions that are vmapped over kernels are slower.
ACCELERATOR_CHUNKS = {"lenet5": 64, "lenet5-bn": 64, "vgg11": 1, "resnet18": 1}
"""Networks trained at once there; on a processor one, since vmapped convolutions are slow."""


@functools.cache
def images(run: Run[Any]) -> Images:
    """Loads the data of a run."""
    return load_images(run.settings.data, run.settings.images, run.settings.test_images)


def train(run: Run[Any], family: Family) -> list[Row]:
    """Trains and tests every network of a family, from the epoch where it was killed.

    Networks of one seed start alike and see the same batches and noise. "curve" of a row holds a
    network's accuracies at the levels.
    """
    data = images(run)
    size = run.settings
    points: Points = getattr(size, "points", "every")
    network = build(family.network, data.shape, size.width).at(points)
    settings = jax.tree.map(lambda *column: jnp.array(column, jnp.float32), *family.settings)
    steps = size.epochs * (len(data.train[1]) // size.batch_size)
    rate = family.rate or size.rate

    def quantized(scale: Any) -> Any:
        return quantize(network, family.scaling, family.bits, scale, data.shape)

    def loss_at(setting: Setting) -> Any:
        train, _, _ = quantized(setting.scale)
        if not family.noisy:
            return cross_entropy(train, mutable=True)

        def at(levels: Any) -> Any:
            return cross_entropy(noisy(train, network.noise(levels)), keyed=True, mutable=True)

        varying = variance_aware(at, form=family.form, ramp_steps=int(family.ramp * steps))
        return varying(VariableLevel(setting.sigma, setting.theta, setting.alpha))

    def score(key: jax.Array, params: Any, state: Any, setting: Setting) -> dict[str, Any]:
        _, evaluate, _ = quantized(setting.scale)
        specs = dict.fromkeys(network.slots, Additive(jnp.asarray(size.levels, jnp.float32)))
        accuracies = noisy_accuracy(
            key, evaluate, params, data.test, specs, repeats=size.repeats, batch_size=BATCH,
            state=state,
        )  # fmt: skip
        return {"accuracy": accuracies.mean(axis=0)}

    on_cpu = jax.default_backend() == "cpu"
    result = sweep(
        run.fast_key, loss_at, quantized(1.0)[2], data.train, settings, score=score,
        optimizer=_optimizer(optax.cosine_decay_schedule(rate, steps), size.decay, family.rho),
        epochs=size.epochs, batch_size=size.batch_size, seeds=size.seeds,
        chunk=1 if on_cpu else ACCELERATOR_CHUNKS[family.network],
        # Writing the state of a large network takes as long as some of its epochs.
        checkpoint=run.work / family.name, checkpoint_every=10 if on_cpu else size.epochs,
        identity={
            "family": family.name, "rate": rate, "decay": size.decay, "ramp": family.ramp,
            "levels": size.levels, "test": [len(data.test[1]), size.repeats], "width": size.width,
            **({} if points == "every" else {"points": points}),
        },
    )  # fmt: skip
    return [
        {
            "network": family.network, "method": family.method, "scaling": family.scaling,
            "bits": family.bits, "rho": family.rho, **setting._asdict(), "seed": seed,
            "diverged": bool(result.diverged[seed, i]),
            "peak": float(np.max(result.scores["accuracy"][seed, i])),
            "images": size.images, "epochs": size.epochs, "size": run.size,
            "curve": result.scores["accuracy"][seed, i].tolist(),
        }
        for seed in range(size.seeds)
        for i, setting in enumerate(family.settings)
    ]  # fmt: skip


def _optimizer(rate: Any, decay: float, rho: float) -> optax.GradientTransformation:
    adam = optax.chain(optax.add_decayed_weights(decay), optax.adam(rate))
    return sharpness_aware(adam, rho, adaptive=True) if rho else adam
