"""Convolutional networks: small ones of the wiring that their names stand for."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxeff.nn import LeNet5
from jaxeff.nn.layers import Block
from tests.pruning.networks.making import IMAGE, SEQUENCE, of_linen, of_nnx


class Norm(nnx.Module):
    """A convolution without bias and a batch norm."""

    def __init__(self, inner, out, size, rngs, strides=1, groups=1):
        self.conv = nnx.Conv(
            inner, out, (size, size), strides=strides, feature_group_count=groups,
            use_bias=False, rngs=rngs,
        )  # fmt: skip
        self.bn = nnx.BatchNorm(out, rngs=rngs)

    def __call__(self, x):
        return self.bn(self.conv(x))


class Residual(nnx.Module):
    """Two basic residual blocks with projections."""

    def __init__(self, rngs):
        self.first, self.second = Block(3, 8, 1, True, rngs=rngs), Block(8, 12, 2, True, rngs=rngs)
        self.head = nnx.Linear(12, 5, rngs=rngs)

    def __call__(self, x):
        return self.head(self.second(self.first(x)).mean((1, 2)))


class Bottleneck(nnx.Module):
    """1x1, 3x3 (grouped in ResNeXt), 1x1 and a shortcut; squeeze-and-excite if asked."""

    def __init__(self, inner, width, out, rngs, strides=1, groups=1, squeeze=0):
        self.reduce = Norm(inner, width, 1, rngs)
        self.conv = Norm(width, width, 3, rngs, strides, groups)
        self.expand = Norm(width, out, 1, rngs)
        self.shortcut = Norm(inner, out, 1, rngs, strides) if (inner, strides) != (out, 1) else None
        self.excite = Excite(out, squeeze, rngs) if squeeze else None

    def __call__(self, x):
        y = jax.nn.relu(self.conv(jax.nn.relu(self.reduce(x))))
        y = self.expand(y)
        y = y if self.excite is None else self.excite(y)
        return jax.nn.relu(y + (x if self.shortcut is None else self.shortcut(x)))


class Excite(nnx.Module):
    """Squeeze-and-excite."""

    def __init__(self, width, hidden, rngs, gate=jax.nn.sigmoid):
        self.squeeze = nnx.Linear(width, hidden, rngs=rngs)
        self.excite = nnx.Linear(hidden, width, rngs=rngs)
        self.gate = gate

    def __call__(self, x):
        y = self.excite(jax.nn.relu(self.squeeze(x.mean((1, 2)))))
        return x * self.gate(y)[:, None, None]


class ResNet(nnx.Module):
    """A stem, max-pooling, and stages of bottlenecks: ResNet-50, ResNeXt-50, SE-ResNet-50."""

    def __init__(self, rngs, stem=12, widths=(4, 6), blocks=(1, 1), groups=1, expand=3, squeeze=0):
        self.stem = Norm(3, stem, 3 if stem < 64 else 7, rngs, 1 if stem < 64 else 2)
        layers, inner = [], stem
        for stage, width in enumerate(widths):
            for i in range(blocks[stage]):
                strides = 2 if stage and not i else 1
                out = expand * width
                layers.append(Bottleneck(inner, width, out, rngs, strides, groups, squeeze))
                inner = out
        self.layers = nnx.List(layers)
        self.head = nnx.Linear(inner, 5, rngs=rngs)

    def __call__(self, x):
        x = nnx.max_pool(jax.nn.relu(self.stem(x)), (3, 3), strides=(2, 2), padding="SAME")
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean((1, 2)))


class DenseNet(nnx.Module):
    """Norm, relu, bottleneck and growth; a transition halves channels and places."""

    def __init__(self, rngs, stem=6, growth=4, blocks=2, depth=2):
        self.stem = nnx.Conv(3, stem, (3, 3), rngs=rngs)
        self.blocks, self.transitions, inner = nnx.List([]), nnx.List([]), stem
        for block in range(blocks):
            layers = []
            for _ in range(depth):
                bottleneck = nnx.Conv(inner, 2 * growth, (1, 1), use_bias=False, rngs=rngs)
                layers.append(
                    nnx.Dict(
                        norm=nnx.BatchNorm(inner, rngs=rngs),
                        reduce=bottleneck,
                        again=nnx.BatchNorm(2 * growth, rngs=rngs),
                        grow=nnx.Conv(2 * growth, growth, (3, 3), use_bias=False, rngs=rngs),
                    )
                )
                inner += growth
            self.blocks.append(nnx.List(layers))
            if block + 1 < blocks:
                self.transitions.append(
                    nnx.Dict(
                        norm=nnx.BatchNorm(inner, rngs=rngs),
                        conv=nnx.Conv(inner, inner // 2, (1, 1), use_bias=False, rngs=rngs),
                    )
                )
                inner //= 2
        self.norm = nnx.BatchNorm(inner, rngs=rngs)
        self.head = nnx.Linear(inner, 5, rngs=rngs)

    def __call__(self, x):
        x = self.stem(x)
        for i, block in enumerate(self.blocks):
            for layer in block:
                y = layer["reduce"](jax.nn.relu(layer["norm"](x)))
                y = layer["grow"](jax.nn.relu(layer["again"](y)))
                x = jnp.concatenate([x, y], -1)
            if i < len(self.transitions):
                step = self.transitions[i]
                x = step["conv"](jax.nn.relu(step["norm"](x)))
                x = nnx.avg_pool(x, (2, 2), strides=(2, 2))
        return self.head(jax.nn.relu(self.norm(x)).mean((1, 2)))


class Inverted(nnx.Module):
    """MobileNet's block: expand, depthwise, project, and a shortcut where shapes agree."""

    def __init__(self, inner, hidden, out, rngs, strides=1, excite=False, act=jax.nn.relu6):
        self.expand = Norm(inner, hidden, 1, rngs)
        self.depthwise = Norm(hidden, hidden, 3, rngs, strides, hidden)
        self.excite = Excite(hidden, 4, rngs, jax.nn.hard_sigmoid) if excite else None
        self.project = Norm(hidden, out, 1, rngs)
        self.shortcut, self.act = (inner, strides) == (out, 1), act

    def __call__(self, x):
        y = self.act(self.depthwise(self.act(self.expand(x))))
        y = y if self.excite is None else self.excite(y)
        y = self.project(y)
        return x + y if self.shortcut else y


class MobileNet(nnx.Module):
    """Version 2, or 3 with squeeze-and-excite and hard swish."""

    def __init__(self, rngs, version=2):
        act = jax.nn.relu6 if version == 2 else jax.nn.hard_swish
        more = {"excite": version == 3, "act": act}
        self.stem = Norm(3, 8, 3, rngs, 2)
        self.blocks = nnx.List([
            Inverted(8, 16, 8, rngs, **more), Inverted(8, 16, 12, rngs, 2, **more),
        ])  # fmt: skip
        self.last, self.head = Norm(12, 20, 1, rngs), nnx.Linear(20, 5, rngs=rngs)
        self.act = act

    def __call__(self, x):
        x = self.act(self.stem(x))
        for block in self.blocks:
            x = block(x)
        return self.head(self.act(self.last(x)).mean((1, 2)))


def shuffled(x, groups):
    """Channels of the groups in turn."""
    b, h, w, c = x.shape
    return x.reshape(b, h, w, groups, c // groups).swapaxes(3, 4).reshape(b, h, w, c)


class ShuffleNet1(nnx.Module):
    """Grouped 1x1 convolutions with a shuffle between them, in a residual block."""

    def __init__(self, rngs):
        self.stem = Norm(3, 16, 3, rngs)
        self.squeeze, self.depthwise = Norm(16, 8, 1, rngs, 1, 2), Norm(8, 8, 3, rngs, 1, 8)
        self.expand = Norm(8, 16, 1, rngs, 1, 2)
        self.head = nnx.Linear(16, 5, rngs=rngs)

    def __call__(self, x):
        x = jax.nn.relu(self.stem(x))
        y = shuffled(jax.nn.relu(self.squeeze(x)), 2)
        x = jax.nn.relu(x + self.expand(self.depthwise(y)))
        return self.head(x.mean((1, 2)))


class ShuffleNet2(nnx.Module):
    """Units that split channels in halves, work on one, join and shuffle."""

    def __init__(self, rngs):
        self.stem = Norm(3, 16, 3, rngs)
        self.units = nnx.List([
            nnx.List([Norm(8, 8, 1, rngs), Norm(8, 8, 3, rngs, 1, 8), Norm(8, 8, 1, rngs)])
            for _ in range(2)
        ])  # fmt: skip
        self.last, self.head = Norm(16, 20, 1, rngs), nnx.Linear(20, 5, rngs=rngs)

    def __call__(self, x):
        x = jax.nn.relu(self.stem(x))
        for reduce, depthwise, expand in self.units:
            left, right = jnp.split(x, 2, -1)
            right = jax.nn.relu(expand(depthwise(jax.nn.relu(reduce(right)))))
            x = shuffled(jnp.concatenate([left, right], -1), 2)
        return self.head(jax.nn.relu(self.last(x)).mean((1, 2)))


class UNet(nnx.Module):
    """Down twice, up by transposed convolutions, joined by concatenation."""

    def __init__(self, rngs):
        self.first, self.second = Norm(3, 6, 3, rngs), Norm(6, 10, 3, rngs)
        self.deep = Norm(10, 16, 3, rngs)
        self.up = nnx.ConvTranspose(16, 10, (2, 2), strides=(2, 2), rngs=rngs)
        self.join = Norm(20, 10, 3, rngs)
        self.again = nnx.ConvTranspose(10, 6, (3, 3), strides=(2, 2), rngs=rngs)
        self.out = nnx.Conv(12, 2, (1, 1), rngs=rngs)

    def __call__(self, x):
        def halved(z):
            return nnx.max_pool(z, (2, 2), strides=(2, 2))

        x = jax.nn.relu(self.first(x))
        y = jax.nn.relu(self.second(halved(x)))
        z = jax.nn.relu(self.deep(halved(y)))
        y = jax.nn.relu(self.join(jnp.concatenate([y, self.up(z)], -1)))
        return self.out(jnp.concatenate([x, self.again(y)], -1))


class ConvNeXt(nnx.Module):
    """Depthwise 7x7, layer norm, an inverted bottleneck and a layer scale."""

    def __init__(self, rngs, stem=8, hidden=16, wide=12, more=20):
        self.stem = nnx.Conv(3, stem, (2, 2), strides=2, rngs=rngs)
        self.norm = nnx.LayerNorm(stem, rngs=rngs)
        self.one = self._block(stem, hidden, rngs)
        self.between = nnx.LayerNorm(stem, rngs=rngs)
        self.down = nnx.Conv(stem, wide, (2, 2), strides=2, rngs=rngs)
        self.two = self._block(wide, more, rngs)
        self.last = nnx.LayerNorm(wide, rngs=rngs)
        self.head = nnx.Linear(wide, 5, rngs=rngs)

    @staticmethod
    def _block(width, hidden, rngs):
        return nnx.Dict(
            depthwise=nnx.Conv(width, width, (7, 7), feature_group_count=width, rngs=rngs),
            norm=nnx.LayerNorm(width, rngs=rngs),
            up=nnx.Linear(width, hidden, rngs=rngs),
            down=nnx.Linear(hidden, width, rngs=rngs),
            scale=nnx.Param(jnp.ones(width)),
        )

    def __call__(self, x):
        x = self.norm(self.stem(x))
        for i, block in enumerate((self.one, self.two)):
            y = block["up"](block["norm"](block["depthwise"](x)))
            x = x + block["down"](jax.nn.gelu(y)) * block["scale"][...]
            x = x if i else self.down(self.between(x))
        return self.head(self.last(x.mean((1, 2))))


class Upscaling(nnx.Module):
    """Sub-pixel convolution: channels become places, twice."""

    def __init__(self, rngs):
        self.first, self.wide = (
            nnx.Conv(3, 8, (3, 3), rngs=rngs),
            nnx.Conv(8, 24, (3, 3), rngs=rngs),
        )
        self.middle, self.out = (
            nnx.Conv(6, 6, (3, 3), rngs=rngs),
            nnx.Conv(6, 12, (3, 3), rngs=rngs),
        )

    def __call__(self, x):
        x = jnp.tanh(self.middle(self._shuffled(self.wide(jax.nn.relu(self.first(x))))))
        return self._shuffled(self.out(x))

    @staticmethod
    def _shuffled(x):
        b, h, w, c = x.shape
        x = x.reshape(b, h, w, 2, 2, c // 4).transpose(0, 1, 3, 2, 4, 5)
        return x.reshape(b, 2 * h, 2 * w, c // 4)


class GroupNormed(nnx.Module):
    """Group norms in a residual block."""

    def __init__(self, rngs, groups=4, each=3, again=4, hidden=2):
        width = groups * each
        self.stem = nnx.Conv(3, width, (3, 3), rngs=rngs)
        self.norm = nnx.GroupNorm(width, num_groups=groups, rngs=rngs)
        self.conv = nnx.Conv(width, again * hidden, (3, 3), rngs=rngs)
        self.again = nnx.GroupNorm(again * hidden, num_groups=again, rngs=rngs)
        self.back = nnx.Conv(again * hidden, width, (3, 3), rngs=rngs)
        self.head = nnx.Linear(width, 5, rngs=rngs)

    def __call__(self, x):
        x = self.stem(x)
        y = self.conv(jax.nn.silu(self.norm(x)))
        return self.head((x + self.back(jax.nn.silu(self.again(y)))).mean((1, 2)))


class Autoencoder(nnx.Module):
    """Flattened before a dense layer, and unflattened after one."""

    def __init__(self, rngs):
        self.down = nnx.Conv(3, 6, (3, 3), strides=2, rngs=rngs)
        self.code, self.decode = nnx.Linear(96, 7, rngs=rngs), nnx.Linear(7, 64, rngs=rngs)
        self.up = nnx.ConvTranspose(4, 5, (3, 3), strides=(2, 2), rngs=rngs)
        self.out = nnx.Conv(5, 3, (3, 3), rngs=rngs)

    def __call__(self, x):
        x = jax.nn.elu(self.down(x))
        x = jnp.tanh(self.code(x.reshape(x.shape[0], -1)))
        x = jax.nn.relu(self.decode(x)).reshape(x.shape[0], 4, 4, 4)
        return self.out(jax.nn.softplus(self.up(x)))


class Inception(nn.Module):
    """Linen: branches of several sizes side by side, batch norms, a layer that is used twice."""

    @nn.compact
    def __call__(self, x):
        one = nn.Conv(4, (1, 1), name="one")(x)
        three = nn.Conv(6, (3, 3), name="three")(nn.relu(nn.Conv(5, (1, 1), name="reduce")(x)))
        pooled = nn.Conv(3, (1, 1), name="pooled")(nn.avg_pool(x, (3, 3), padding="SAME"))
        x = jnp.concatenate([one, three, pooled], -1)
        x = nn.relu(nn.BatchNorm(use_running_average=True, name="bn")(x))
        again = nn.Conv(13, (3, 3), name="again")
        return nn.Dense(5, name="head")(again(nn.relu(again(x))).mean((1, 2)))


class WaveNet(nnx.Module):
    """Dilated convolutions over time, gated, with residual and skip paths."""

    def __init__(self, rngs):
        self.inner = nnx.Conv(5, 8, (1,), rngs=rngs)
        self.layers = nnx.List([
            nnx.Dict(
                wide=nnx.Conv(8, 12, (2,), kernel_dilation=d, padding="CAUSAL", rngs=rngs),
                back=nnx.Conv(6, 8, (1,), rngs=rngs), skip=nnx.Conv(6, 7, (1,), rngs=rngs),
            ) for d in (1, 2)
        ])  # fmt: skip
        self.out = nnx.Conv(7, 3, (1,), rngs=rngs)

    def __call__(self, x):
        x, total = self.inner(x), 0.0
        for layer in self.layers:
            value, gate = jnp.split(layer["wide"](x), 2, -1)
            y = jnp.tanh(value) * jax.nn.sigmoid(gate)
            x, total = x + layer["back"](y), total + layer["skip"](y)
        return self.out(jax.nn.relu(total))


def resnet50(rngs):
    """The network itself, for 224x224 images."""
    return ResNet(rngs, 64, (64, 128, 256, 512), (3, 4, 6, 3), expand=4)


DIGITS = np.random.default_rng(3).standard_normal((2, 28, 28, 1), np.float32)

NETWORKS = {
    "lenet": lambda: of_nnx(lambda rngs: LeNet5(rngs=rngs), DIGITS),
    "resnet18": lambda: of_nnx(Residual, IMAGE),
    "resnet50": lambda: of_nnx(ResNet, IMAGE),
    "resnext": lambda: of_nnx(lambda rngs: ResNet(rngs, 24, (8, 12), groups=4), IMAGE),
    "squeeze and excite": lambda: of_nnx(lambda rngs: ResNet(rngs, squeeze=3), IMAGE),
    "densenet": lambda: of_nnx(DenseNet, IMAGE),
    "mobilenet2": lambda: of_nnx(MobileNet, IMAGE),
    "mobilenet3": lambda: of_nnx(lambda rngs: MobileNet(rngs, 3), IMAGE),
    "shufflenet1": lambda: of_nnx(ShuffleNet1, IMAGE),
    "shufflenet2": lambda: of_nnx(ShuffleNet2, IMAGE),
    "unet": lambda: of_nnx(UNet, IMAGE),
    "convnext": lambda: of_nnx(
        ConvNeXt,
        IMAGE,
        narrow=ConvNeXt,
        sizes={
            "stem": "one/depthwise/kernel:3",
            "hidden": "one/up/kernel:1",
            "wide": "down/kernel:3",
            "more": "two/up/kernel:1",
        },
    ),
    "pixel shuffle": lambda: of_nnx(Upscaling, IMAGE[:, :4, :4]),
    "group norm": lambda: of_nnx(
        GroupNormed,
        IMAGE,
        narrow=GroupNormed,
        sizes={
            "groups": "back/kernel:3",
            "each": "back/kernel:3#1",
            "again": "conv/kernel:3",
            "hidden": "conv/kernel:3#1",
        },
    ),
    "autoencoder": lambda: of_nnx(Autoencoder, IMAGE),
    "inception": lambda: of_linen(Inception(), IMAGE),
    "wavenet": lambda: of_nnx(WaveNet, SEQUENCE),
}
