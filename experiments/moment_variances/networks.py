"""The networks whose variances are measured, and the posteriors they are measured under.

Small ones, since ten thousand samples of each are the oracle. Where nothing is trained, a weight w
has a standard deviation of .1 |w| + .02; noise at the input has a variance of .1.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

import jaxeff
from jaxeff.moment_propagation import Gaussian
from jaxeff.nn import MLP
from jaxeff.nn.models import EncoderBlock

WIDTH, CLASSES, TOKENS, SIZE = 16, 10, 8, 8
NOISE = 0.1


class Case(NamedTuple):
    """A function, what is random, and its inputs.

    Attributes:
        f: The network.
        posterior: Its parameters; plain arrays where the noise is at the input.
        inputs: `inputs(key, n)`, inputs of the distribution it is for.
        convolutional: Whether sampled weights are better run one after the other than vmapped.
    """

    f: Callable[..., Any]
    posterior: Any
    inputs: Callable[[jax.Array, int], Any]
    convolutional: bool


def spread(params: Any) -> Any:
    """A posterior about parameters."""
    return jax.tree.map(lambda p: Gaussian(p, (0.1 * jnp.abs(p) + 0.02) ** 2), params)


class Recurrent(nnx.Module):
    """A cell over a sequence, unrolled."""

    def __init__(self, cell: Any, rngs: nnx.Rngs):
        """Build it."""
        self.cell = cell(WIDTH, 32, rngs=rngs)
        self.gated = cell is nnx.LSTMCell
        self.fc = nnx.Linear(32, CLASSES, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Logits after the last element."""
        h = jnp.zeros((len(x), 32))
        carry: Any = (h, h) if self.gated else h
        for t in range(x.shape[1]):
            carry, h = self.cell(carry, x[:, t])
        return self.fc(h)


class Normalized(nnx.Module):
    """Dense layers with layer norm."""

    def __init__(self, rngs: nnx.Rngs):
        """Build it."""
        self.fc1, self.ln1 = nnx.Linear(WIDTH, 64, rngs=rngs), nnx.LayerNorm(64, rngs=rngs)
        self.fc2, self.ln2 = nnx.Linear(64, 64, rngs=rngs), nnx.LayerNorm(64, rngs=rngs)
        self.fc3 = nnx.Linear(64, CLASSES, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Logits."""
        x = nnx.relu(self.ln1(self.fc1(x)))
        return self.fc3(nnx.relu(self.ln2(self.fc2(x))))


class Depthwise(nnx.Module):
    """A convolution by channel between a convolution and a dense layer."""

    def __init__(self, rngs: nnx.Rngs):
        """Build it."""
        self.conv = nnx.Conv(3, WIDTH, (3, 3), strides=2, rngs=rngs)
        self.dw = nnx.Conv(WIDTH, WIDTH, (3, 3), feature_group_count=WIDTH, rngs=rngs)
        self.fc = nnx.Linear(WIDTH * (SIZE // 2) ** 2, CLASSES, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Logits."""
        x = nnx.relu(self.dw(nnx.relu(self.conv(x))))
        return self.fc(x.reshape(len(x), -1))


class SqueezeExcite(nnx.Module):
    """Channels weighted by what their means say."""

    def __init__(self, rngs: nnx.Rngs):
        """Build it."""
        self.conv = nnx.Conv(3, WIDTH, (3, 3), strides=2, rngs=rngs)
        self.down = nnx.Linear(WIDTH, 8, rngs=rngs)
        self.up = nnx.Linear(8, WIDTH, rngs=rngs)
        self.fc = nnx.Linear(WIDTH * (SIZE // 2) ** 2, CLASSES, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Logits."""
        x = nnx.relu(self.conv(x))
        s = nnx.sigmoid(self.up(nnx.relu(self.down(x.mean((1, 2))))))
        return self.fc((x * s[:, None, None]).reshape(len(x), -1))


class Pooled(nnx.Module):
    """A convolution whose noise all positions share, and their mean."""

    def __init__(self, rngs: nnx.Rngs):
        """Build it."""
        self.conv = nnx.Conv(3, WIDTH, (3, 3), rngs=rngs)
        self.fc = nnx.Linear(WIDTH, CLASSES, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Logits."""
        return self.fc(nnx.relu(self.conv(x)).mean((1, 2)))


class Residual(nnx.Module):
    """Two residual blocks of two convolutions, and the mean over positions."""

    def __init__(self, rngs: nnx.Rngs):
        """Build it."""
        self.stem = nnx.Conv(3, WIDTH, (3, 3), rngs=rngs)
        convs = [nnx.Conv(WIDTH, WIDTH, (3, 3), rngs=rngs) for _ in range(4)]
        self.convs = nnx.List(convs)
        self.fc = nnx.Linear(WIDTH, CLASSES, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Logits."""
        x = nnx.relu(self.stem(x))
        for i in (0, 2):
            x = nnx.relu(x + self.convs[i + 1](nnx.relu(self.convs[i](x))))
        return self.fc(x.mean((1, 2)))


class MobileNet(nnx.Module):
    """Two inverted residual blocks (arXiv 1801.04381) without norms, and the mean."""

    def __init__(self, rngs: nnx.Rngs):
        """Build it."""
        self.stem = nnx.Conv(3, WIDTH, (3, 3), rngs=rngs)
        self.up = nnx.List([nnx.Conv(WIDTH, 32, (1, 1), rngs=rngs) for _ in range(2)])
        self.dw = nnx.List(
            [nnx.Conv(32, 32, (3, 3), feature_group_count=32, rngs=rngs) for _ in range(2)]
        )
        self.down = nnx.List([nnx.Conv(32, WIDTH, (1, 1), rngs=rngs) for _ in range(2)])
        self.fc = nnx.Linear(WIDTH, CLASSES, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Logits."""
        x = nnx.relu(self.stem(x))
        for up, dw, down in zip(self.up, self.dw, self.down, strict=True):
            x = x + down(nnx.relu6(dw(nnx.relu6(up(x)))))
        return self.fc(x.mean((1, 2)))


class Twice(nnx.Module):
    """The same residual layer, twice."""

    def __init__(self, rngs: nnx.Rngs):
        """Build it."""
        self.first = nnx.Linear(WIDTH, 32, rngs=rngs)
        self.again = nnx.Linear(32, 32, rngs=rngs)
        self.fc = nnx.Linear(32, CLASSES, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Logits."""
        x = self.first(x)
        for _ in range(2):
            x = x + nnx.relu(self.again(x))
        return self.fc(x)


class Repeated(nnx.Module):
    """A bag of embedded tokens, most of which occur more than once."""

    def __init__(self, rngs: nnx.Rngs):
        """Build it."""
        self.embed = nnx.Embed(4, WIDTH, rngs=rngs)
        self.fc1 = nnx.Linear(WIDTH, 32, rngs=rngs)
        self.fc2 = nnx.Linear(32, CLASSES, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Logits."""
        return self.fc2(nnx.relu(self.fc1(self.embed(tokens))).mean(1))


class Attention(nnx.Module):
    """Attention and the mean of its results."""

    def __init__(self, rngs: nnx.Rngs):
        """Build it."""
        self.attn = nnx.MultiHeadAttention(4, WIDTH, decode=False, rngs=rngs)
        self.fc = nnx.Linear(WIDTH, CLASSES, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Logits."""
        return self.fc(self.attn(x).mean(1))


class ViT(nnx.Module):
    """Patches, an encoder block, and the mean (arXiv 2010.11929)."""

    def __init__(self, rngs: nnx.Rngs):
        """Build it."""
        self.patches = nnx.Conv(3, WIDTH, (2, 2), strides=2, rngs=rngs)
        self.position = nnx.Param(0.02 * jax.random.normal(rngs(), ((SIZE // 2) ** 2, WIDTH)))
        self.block = EncoderBlock(WIDTH, 2, 32, rngs=rngs)
        self.ln = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.fc = nnx.Linear(WIDTH, CLASSES, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Logits."""
        x = self.patches(x).reshape(len(x), -1, WIDTH) + self.position[None]
        return self.fc(self.ln(self.block(x)).mean(1))


def _lora(params: Any, x: jax.Array) -> jax.Array:
    """Two dense layers, each with an update of rank four (arXiv 2106.09685)."""
    for i, layer in enumerate(params):
        x = x @ (layer["w"] + layer["a"] @ layer["b"])
        x = x if i else jax.nn.relu(x)
    return x


def _lora_posterior(key: jax.Array) -> Any:
    """Weights that are known, and a posterior over their updates."""

    def layer(key: jax.Array, rows: int, columns: int) -> Any:
        w, a, b = (jax.random.fold_in(key, i) for i in range(3))
        return {
            "w": jax.random.normal(w, (rows, columns)) / rows**0.5,
            **spread(
                {
                    "a": jax.random.normal(a, (rows, 4)) / rows**0.5,
                    "b": 0.5 * jax.random.normal(b, (4, columns)),
                }
            ),
        }

    first, second = jax.random.split(key)
    return [layer(first, WIDTH, 64), layer(second, 64, CLASSES)]


def build(name: str, key: jax.Array) -> Case:
    """The network of a name with a posterior that isn't trained."""
    rngs = nnx.Rngs(key)
    noisy = name.endswith("noise at the input")
    image, sequence, vector = (SIZE, SIZE, 3), (TOKENS, WIDTH), (WIDTH,)

    def normal(shape: tuple[int, ...]) -> Callable[[jax.Array, int], Any]:
        def inputs(key: jax.Array, n: int) -> Any:
            x = jax.random.normal(key, (n, *shape))
            return Gaussian(x, jnp.full_like(x, NOISE)) if noisy else x

        return inputs

    if name == "rank-4 LoRA":
        return Case(_lora, _lora_posterior(key), normal(vector), False)
    if name == "repeated token + mean":

        def tokens(key: jax.Array, n: int) -> jax.Array:
            return jax.random.randint(key, (n, TOKENS), 0, 4)

        f, params = jaxeff.functional(Repeated(rngs))
        return Case(f, spread(params), tokens, False)

    builders: dict[str, tuple[Callable[[], nnx.Module], tuple[int, ...]]] = {
        "MLP": (lambda: MLP((WIDTH, 64, 64, CLASSES), rngs=rngs), vector),
        "LSTM": (lambda: Recurrent(nnx.LSTMCell, rngs), sequence),
        "GRU": (lambda: Recurrent(nnx.GRUCell, rngs), sequence),
        "LayerNorm MLP": (lambda: Normalized(rngs), vector),
        "BatchNorm": (
            lambda: _settled(MLP((WIDTH, 64, 64, CLASSES), batch_norm=True, rngs=rngs), key),
            vector,
        ),
        "depthwise": (lambda: Depthwise(rngs), image),
        "squeeze-and-excite": (lambda: SqueezeExcite(rngs), image),
        "conv + mean": (lambda: Pooled(rngs), image),
        "same layer twice": (lambda: Twice(rngs), vector),
        "attention": (lambda: Attention(rngs), sequence),
        "residual": (lambda: Residual(rngs), image),
        "MobileNet-like": (lambda: MobileNet(rngs), image),
        "ViT": (lambda: ViT(rngs), image),
    }
    make, shape = builders[name.removesuffix(", noise at the input")]
    f, params = jaxeff.functional(make())
    return Case(f, params if noisy else spread(params), normal(shape), shape == image)


def _settled(model: nnx.Module, key: jax.Array) -> nnx.Module:
    """A network whose running statistics are those of its inputs."""
    for i in range(30):
        model(jax.random.normal(jax.random.fold_in(key, i), (128, WIDTH)))
    model.eval()
    return model
