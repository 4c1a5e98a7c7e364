"""The networks whose variances are measured: how each is built, its data, and its posteriors.

Images have 28×28 pixels, for the ResNets and the U-Net half of that. The transformers and the mixer
read 16 patches of 7×7, the LSTM seven times four rows; the U-Net finds the ink in noisy images; the
decoder predicts the letter after 32 others.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import jaxeff
from experiments.beyond.moment_variances.recipe import OUTSIDE, SVI, Settings
from experiments.beyond.separable import Separable
from experiments.beyond.tokens.texts import texts, windows
from experiments.harness import Run
from experiments.recipes import cosine_adam
from jaxeff import Gaussian, data
from jaxeff.bayes import svi
from jaxeff.compression import fold_batch_norm
from jaxeff.contrib import Decoder, DecoderConfig
from jaxeff.nn import LeNet5, ResNet8, ResNet18, TransformerEncoder
from jaxeff.training import cross_entropy, fit

TOKENS, PATCH, WIDTH, LETTERS, LENGTH = 16, 49, 32, 27, 32
_BATCH = 64
Split = tuple[Any, Any]


class Sets(NamedTuple):
    """Inputs and labels to learn and to test, and inputs of another kind."""

    train: Split
    test: Split
    outside: Any


class Case(NamedTuple):
    """A trained network, its posteriors by what they are called, and its data."""

    f: Callable[..., Any]
    posteriors: Mapping[str, Any]
    sets: Sets


class UNet(nnx.Module):
    """One step down and up around a shortcut (arXiv 1505.04597), two logits a pixel."""

    def __init__(self, rngs: nnx.Rngs):
        """Builds the layers."""
        self.down = nnx.Conv(1, 8, (3, 3), rngs=rngs)
        self.bottom = nnx.Conv(8, 16, (3, 3), strides=2, rngs=rngs)
        self.up = nnx.ConvTranspose(16, 8, (2, 2), strides=(2, 2), rngs=rngs)
        self.join = nnx.Conv(16, 8, (3, 3), rngs=rngs)
        self.out = nnx.Conv(8, 2, (1, 1), rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns logits of pixels."""
        x = nnx.relu(self.down(x))
        low = nnx.relu(self.up(nnx.relu(self.bottom(x))))
        return self.out(nnx.relu(self.join(jnp.concatenate([x, low], -1))))


class Recurrent(nnx.Module):
    """A scanned LSTM whose last state is classified."""

    def __init__(self, rngs: nnx.Rngs):
        """Builds the layers."""
        self.rnn = nnx.RNN(nnx.LSTMCell(112, WIDTH, rngs=rngs), rngs=rngs)
        self.fc = nnx.Linear(WIDTH, 10, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns logits after the last element."""
        return self.fc(self.rnn(x)[:, -1])


def _dense(size: int, rngs: nnx.Rngs) -> nnx.Module:
    hidden = 2 * size
    first, second = nnx.Linear(size, hidden, rngs=rngs), nnx.Linear(hidden, size, rngs=rngs)
    return nnx.Sequential(first, nnx.gelu, second)


class MixerBlock(nnx.Module):
    """Two dense layers over tokens, then two over channels (arXiv 2105.01601)."""

    def __init__(self, rngs: nnx.Rngs, width: int):
        """Builds the layers."""
        self.ln1, self.ln2 = nnx.LayerNorm(width, rngs=rngs), nnx.LayerNorm(width, rngs=rngs)
        self.tokens, self.channels = _dense(TOKENS, rngs), _dense(width, rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns the block's output, of the shape of ``x``."""
        x = x + jnp.swapaxes(self.tokens(jnp.swapaxes(self.ln1(x), 1, 2)), 1, 2)
        return x + self.channels(self.ln2(x))


class Mixer(nnx.Module):
    """Embedded patches, blocks, and the mean over tokens."""

    def __init__(self, rngs: nnx.Rngs, width: int = WIDTH, depth: int = 4):
        """Builds the layers."""
        self.embed = nnx.Linear(PATCH, width, rngs=rngs)
        self.blocks = nnx.List([MixerBlock(rngs, width) for _ in range(depth)])
        self.ln, self.fc = nnx.LayerNorm(width, rngs=rngs), nnx.Linear(width, 10, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns logits."""
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.fc(self.ln(x).mean(1))


class NextLetter(nnx.Module):
    """A decoder's logits after the last token."""

    def __init__(self, rngs: nnx.Rngs):
        """Builds the layers."""
        config = DecoderConfig(vocabulary=LETTERS, width=WIDTH, hidden=2 * WIDTH, depth=4, heads=4,
                               key_heads=2)  # fmt: skip
        self.decoder = Decoder(config, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Returns logits of the next token."""
        return self.decoder(tokens)[:, -1]


def _halved(x: jax.Array) -> jax.Array:
    return x.reshape(-1, 14, 2, 14, 2, 1).mean((2, 4))


def _patches(x: jax.Array) -> jax.Array:
    return x.reshape(-1, 4, 7, 4, 7).swapaxes(2, 3).reshape(-1, TOKENS, PATCH)


_THREE = {"kernel_size": (3, 3)}
_STEM = {"in_features": 1, "out_features": WIDTH, "kernel_size": (5, 5), "strides": 4}
_IMAGES: dict[str, tuple[Callable[[nnx.Rngs], nnx.Module], Callable[[Any], Any]]] = {
    "LeNet-5": (lambda rngs: LeNet5(rngs=rngs), lambda x: x),
    "DS-CNN": (lambda rngs: Separable(_STEM, _THREE, ((WIDTH, 1),) * 4, 10, rngs), lambda x: x),
    "ResNet-8": (lambda rngs: ResNet8(10, 1, widths=(8, 16, 32), rngs=rngs), _halved),
    # An eighth of its channels, and a stem for small images: at full size draws would take hours.
    "ResNet-18": (
        lambda rngs: ResNet18(10, 1, stem="cifar", widths=(8, 16, 32, 64), rngs=rngs),
        _halved,
    ),
    "LSTM": (Recurrent, lambda x: x.reshape(-1, 7, 112)),
    "MLP-Mixer": (Mixer, _patches),
    "ViT": (
        lambda rngs: TransformerEncoder(10, PATCH, TOKENS, width=WIDTH, depth=4, rngs=rngs),
        _patches,
    ),
}
"""How a classifier of images is built, and how it sees them."""


def untrained(name: str, key: jax.Array, batch: int) -> tuple[Callable[..., Any], Any, Any]:
    """A network as it is drawn, its parameters, and a batch of noise of the form of its inputs."""
    keys = jax.random.split(key)
    model = _model(name, keys[0])
    model.eval()
    evaluate, params, state = jaxeff.functional(model, mutable=True)
    if name == "decoder LM":
        x = jax.random.randint(keys[1], (batch, LENGTH), 0, LETTERS)
    else:
        x = _seen(name, jax.random.normal(keys[1], (batch, 28, 28, 1)))
    f, params, _ = fold_batch_norm(lambda params, x: evaluate(params, state, x)[0], params, x[:2])
    return f, params, x


def trained(run: Run[Settings], name: str) -> Case:
    """Trains a network, then its variational posterior; both are kept."""
    settings = run.settings
    keys = jax.random.split(jax.random.fold_in(run.key, sum(name.encode())), 3)
    sets = _letters(settings) if name == "decoder LM" else _pictures(settings, name, keys[2])
    model = _model(name, keys[0])
    train, params, state = jaxeff.functional(model, mutable=True)
    model.eval()
    evaluate, *_ = jaxeff.functional(model, mutable=True)
    steps = len(sets.train[1]) // _BATCH
    shared: dict[str, Any] = {"batch_size": _BATCH, "progress": False}
    fitted = fit(
        keys[1], cross_entropy(train, mutable=True), params, sets.train, state=state,
        optimizer=cosine_adam(3e-3, settings.epochs * steps), epochs=settings.epochs,
        checkpoint=run.work / f"{name}.safetensors", **shared,
    )  # fmt: skip

    def alone(params: Any, x: Any) -> Any:
        return evaluate(params, fitted.state, x)[0]

    f, params, _ = fold_batch_norm(alone, fitted.params, sets.test[0][:2])
    inferred = svi(
        keys[2], f, params, sets.train, epochs=settings.svi_epochs, prior=1.0, kl=0.25,
        optimizer=cosine_adam(2e-3, settings.svi_epochs * steps), init_scale=1e-2,
        checkpoint=run.work / f"{name}.svi.safetensors", **shared,
    )  # fmt: skip
    noisy = {f"{noise:.0%}".replace("%", " %"): spread(params, noise) for noise in settings.noises}
    return Case(f, {**noisy, SVI: inferred.posterior}, sets)


def spread(params: Any, noise: float) -> Any:
    """A posterior about parameters: noise of a share of the deviation of each array."""
    return jax.tree.map(lambda p: Gaussian(p, jnp.full_like(p, noise**2) * jnp.var(p)), params)


def _model(name: str, key: jax.Array) -> nnx.Module:
    make = {"decoder LM": NextLetter, "U-Net": UNet}.get(name) or _IMAGES[name][0]
    return make(nnx.Rngs(key))


def _seen(name: str, images: jax.Array) -> jax.Array:
    return _halved(images) if name == "U-Net" else _IMAGES[name][1](images)


def _pictures(settings: Settings, name: str, key: jax.Array) -> Sets:
    dataset = data.load(settings.data)
    outside = data.load(OUTSIDE[settings.data]).test_images[: settings.asked]
    n, m = settings.examples, max(settings.asked, settings.held_out)

    def seen(images: Any, labels: Any, key: jax.Array) -> Split:
        x = jnp.asarray(data.normalize(images, settings.data))
        x = _seen(name, x)
        if name != "U-Net":
            return x, jnp.asarray(labels, jnp.int32)
        return x + jax.random.normal(key, x.shape), (x[..., 0] > 0).astype(jnp.int32)

    keys = jax.random.split(key, 3)
    return Sets(
        seen(dataset.train_images[:n], dataset.train_labels[:n], keys[0]),
        seen(dataset.test_images[:m], dataset.test_labels[:m], keys[1]),
        seen(outside, np.zeros(len(outside)), keys[2])[0],
    )


def _letters(settings: Settings) -> Sets:
    rng, written = np.random.default_rng(0), texts()

    def pieces(name: str, count: int) -> Split:
        plain = re.sub("[^a-z]+", " ", written[name].lower())
        codes = np.frombuffer(plain.encode(), np.uint8) % 32  # a space is 0, letters are 1 to 26
        sequences = jnp.asarray(windows(codes.astype(np.int32), count, LENGTH, rng))
        return sequences[:, :-1], sequences[:, -1]

    m = max(settings.asked, settings.held_out)
    return Sets(
        pieces("learnt", settings.examples), pieces("in domain", m),
        pieces("other languages", settings.asked)[0],
    )  # fmt: skip
