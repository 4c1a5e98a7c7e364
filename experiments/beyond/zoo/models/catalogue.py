"""The models of the zoo: how each is built, its examples, and what it computes by itself."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

import jaxeff
from experiments.beyond.zoo.models import graphs, images, mobiles, networks, texts
from experiments.beyond.zoo.models.libraries import OF_LIBRARIES
from experiments.beyond.zoo.models.packages import PACKAGES
from jaxeff.contrib import Decoder, DecoderConfig
from jaxeff.nn import ResNet8


@dataclasses.dataclass(frozen=True)
class Subject:
    """A model as a pure function.

    Attributes:
        name: In `MODELS`.
        f: The function `f(params, *args)`.
        params: Its parameters.
        args: An example of its data.
        alone: What the model returned by itself, without jaxeff.
        last: Pattern of the sites of its last layer.
    """

    name: str
    f: Callable[..., Any]
    params: Any
    args: tuple[Any, ...]
    alone: Any
    last: str


def _normal(*shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(sum(shape)), shape)


def _tokens(*shape: int) -> jax.Array:
    return jax.random.randint(jax.random.key(sum(shape)), shape, 0, texts.WORDS)


_DECODER = DecoderConfig(
    vocabulary=texts.WORDS, width=32, hidden=48, depth=2, heads=4, key_heads=2, rotary_base=100.0
)


def _decoder(rngs: nnx.Rngs) -> Decoder:
    return Decoder(_DECODER, rngs=rngs)


def _gru(rngs: nnx.Rngs) -> texts.Seq2Seq:
    return texts.Seq2Seq(rngs, nnx.GRUCell)


def _sequence() -> tuple[Any, ...]:
    """More steps than compilers write out one by one, and more than one example."""
    return (_normal(2, 12, 8),)


def _cached() -> tuple[Any, ...]:
    """One new token after five, whose keys and values are given."""
    empty = _DECODER.empty_cache(2, 8)
    cache = jax.tree.map(lambda a: a.at[:, :5].set(_normal(2, 5, *a.shape[2:])), empty[:2])
    return _tokens(2, 1), empty._replace(keys=cache[0], values=cache[1], length=jnp.array(5))


def _edges() -> tuple[Any, ...]:
    senders = jnp.array([0, 1, 2, 3, 4, 5, 0, 2])
    return _normal(6, 4), senders, jnp.roll(senders, 3)


ZOO: dict[str, tuple[Callable[[nnx.Rngs], nnx.Module], Callable[[], tuple[Any, ...]], str]] = {
    "resnet": (lambda rngs: ResNet8(rngs=rngs), lambda: (_normal(2, 16, 16, 3),), "fc"),
    "mobilenet": (images.MobileNet, lambda: (_normal(2, 16, 16, 3),), "head"),
    "vgg": (networks.VGG, lambda: (_normal(2, 16, 16, 3),), "head"),
    "mobilenetv3": (mobiles.MobileNetV3, lambda: (_normal(2, 16, 16, 3),), "head"),
    "resnet50": (networks.ResNet, lambda: (_normal(2, 16, 16, 3),), "head"),
    "efficientnet": (mobiles.Mobile, lambda: (_normal(2, 16, 16, 3),), "head"),
    "densenet": (networks.DenseNet, lambda: (_normal(2, 16, 16, 3),), "head"),
    "convnext": (images.ConvNeXt, lambda: (_normal(2, 16, 16, 3),), "head"),
    "unet": (images.UNet, lambda: (_normal(2, 8, 8, 3),), "out"),
    "vae": (graphs.Autoencoder, lambda: (_normal(3, 8, 8, 1),), "up2"),
    "vit": (images.ViT, lambda: (_normal(2, 16, 16, 3),), "head"),
    "decoder": (_decoder, lambda: (_tokens(2, 6),), "blocks/1/down"),
    "decoder-cache": (_decoder, _cached, "blocks/1/down"),
    "t5": (texts.T5, lambda: (_tokens(2, 7), _tokens(2, 5)), "head"),
    "whisper": (texts.Whisper, lambda: (_normal(2, 12, 8),), "blocks/1/down"),
    "lstm": (texts.Seq2Seq, lambda: (_tokens(2, 6), _tokens(2, 4)), "head"),
    "gru": (_gru, lambda: (_tokens(2, 6), _tokens(2, 4)), "head"),
    "loop": (texts.Loop, _sequence, "head"),
    "loop-images": (images.Loop, lambda: (_normal(2, 10, 4, 4, 3),), "head"),
    "mamba": (texts.Mamba, lambda: (_tokens(2, 6),), "head"),
    "graph": (graphs.GraphNet, _edges, "head"),
    **{
        name: (make, lambda: (_normal(1, 224, 224, 3),), "head")
        for name, make in networks.REAL.items()
    },
}
"""How each model is built, its data, and its last layer."""

LOOPS = ("loop", "loop-images")
"""Names of those that are also tried on every core of a microcontroller."""

REAL = tuple(networks.REAL)
"""Names of models of published sizes."""

MODELS = (*(name for name in ZOO if name not in REAL), *PACKAGES)
"""Names of the others, those of packages last."""


def subject(name: str) -> Subject:
    """Builds a model, with batch statistics that are none of the initial ones.

    Raises:
        ImportError: The package that it is of isn't installed.
    """
    if build := {**PACKAGES, **OF_LIBRARIES}.get(name):
        f, params, args, alone, last = build()
        return Subject(name, f, params, args, alone, last)
    make, data, last = ZOO[name]
    model, args = make(nnx.Rngs(0)), data()
    model.eval()
    for i, (_, module) in enumerate(nnx.iter_graph(model)):
        if isinstance(module, nnx.BatchNorm):
            width = module.mean[...].shape
            module.mean[...] = 0.1 * jax.random.normal(jax.random.key(i), width)
            module.var[...] = jax.random.uniform(jax.random.key(i), width, minval=0.5, maxval=1.5)
    alone = model(*args)
    f, params = jaxeff.functional(model)
    return Subject(name, f, params, args, alone, last)
