"""Networks of ImageNet at any size: residual, inverted residual, dense; and published sizes."""

from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from experiments.zoo.models.images import ViT


class Normed(nnx.Module):
    """A convolution without a bias, and batch norm."""

    def __init__(
        self, width: int, out: int, size: int, rngs: nnx.Rngs, stride: int = 1, groups: int = 1
    ):
        """Builds the layers."""
        self.conv = nnx.Conv(
            width, out, (size, size), stride, feature_group_count=groups, use_bias=False, rngs=rngs
        )
        self.bn = nnx.BatchNorm(out, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns normed features."""
        return self.bn(self.conv(x))


class Bottleneck(nnx.Module):
    """Narrow, 3 x 3, wide, around a shortcut (He et al. 2015); without `expansion` two of 3 x 3."""

    def __init__(self, width: int, out: int, stride: int, expansion: int, rngs: nnx.Rngs):
        """Builds the layers."""
        if expansion > 1:
            shapes = [(width, out, 1, 1), (out, out, 3, stride), (out, out * expansion, 1, 1)]
        else:
            shapes = [(width, out, 3, stride), (out, out, 3, 1)]
        self.layers = nnx.List([Normed(a, b, k, rngs, s) for a, b, k, s in shapes])
        same = stride == 1 and width == out * expansion
        self.shortcut = None if same else Normed(width, out * expansion, 1, rngs, stride)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns features of the block."""
        y = x
        for layer in self.layers[:-1]:
            y = nnx.relu(layer(y))
        return nnx.relu(self.layers[-1](y) + (x if self.shortcut is None else self.shortcut(x)))


class ResNet(nnx.Module):
    """ResNet-18 (two blocks a stage) or ResNet-50 (3, 4, 6, 3 bottlenecks)."""

    def __init__(
        self,
        rngs: nnx.Rngs,
        *,
        depths: Sequence[int] = (1, 1),
        width: int = 8,
        expansion: int = 4,
        classes: int = 10,
    ):
        """Builds the layers."""
        self.stem = Normed(3, width, 7, rngs, 2)
        blocks, before = [], width
        for stage, depth in enumerate(depths):
            out = width * 2**stage
            for i in range(depth):
                stride = 2 if stage and not i else 1
                blocks.append(Bottleneck(before, out, stride, expansion, rngs))
                before = out * expansion
        self.blocks = nnx.List(blocks)
        self.head = nnx.Linear(before, classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns logits of images."""
        x = nnx.max_pool(nnx.relu(self.stem(x)), (3, 3), strides=(2, 2), padding="SAME")
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((1, 2)))


class Inverted(nnx.Module):
    """An inverted residual (Sandler et al. 2018), with squeeze and excitation if wanted."""

    def __init__(
        self, width: int, out: int, size: int, stride: int, expand: int, squeeze: bool,
        rngs: nnx.Rngs,
    ):  # fmt: skip
        """Builds the layers."""
        hidden = width * expand
        self.expand = Normed(width, hidden, 1, rngs) if expand > 1 else None
        self.depthwise = Normed(hidden, hidden, size, rngs, stride, hidden)
        self.squeeze = nnx.Linear(hidden, max(1, width // 4), rngs=rngs) if squeeze else None
        self.excite = nnx.Linear(max(1, width // 4), hidden, rngs=rngs) if squeeze else None
        self.project = Normed(hidden, out, 1, rngs)
        self.act = nnx.silu if squeeze else nnx.relu6
        self.is_residual = stride == 1 and width == out

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns features of the block."""
        y = x if self.expand is None else self.act(self.expand(x))
        y = self.act(self.depthwise(y))
        if self.squeeze is not None and self.excite is not None:
            y = y * nnx.sigmoid(self.excite(nnx.silu(self.squeeze(y.mean((1, 2))))))[:, None, None]
        y = self.project(y)
        return x + y if self.is_residual else y


Stage = tuple[int, int, int, int, int]
"""Expansion, width, blocks, first stride, size of the kernel."""


class Mobile(nnx.Module):
    """MobileNetV2, or EfficientNet with `squeeze`."""

    def __init__(
        self,
        rngs: nnx.Rngs,
        *,
        stages: Sequence[Stage] = ((1, 8, 1, 1, 3), (2, 12, 2, 2, 5)),
        stem: int = 8,
        last: int = 24,
        squeeze: bool = True,
        classes: int = 10,
    ):
        """Builds the layers."""
        self.stem, before = Normed(3, stem, 3, rngs, 2), stem
        blocks = []
        for expand, width, count, stride, size in stages:
            for i in range(count):
                blocks.append(
                    Inverted(before, width, size, 1 if i else stride, expand, squeeze, rngs)
                )
                before = width
        self.blocks, self.last = nnx.List(blocks), Normed(before, last, 1, rngs)
        self.act = nnx.silu if squeeze else nnx.relu6
        self.head = nnx.Linear(last, classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns logits of images."""
        x = self.act(self.stem(x))
        for block in self.blocks:
            x = block(x)
        return self.head(self.act(self.last(x)).mean((1, 2)))


class DenseNet(nnx.Module):
    """Layers that read all before them (Huang et al. 2016)."""

    def __init__(
        self,
        rngs: nnx.Rngs,
        *,
        depths: Sequence[int] = (2, 2),
        growth: int = 4,
        classes: int = 10,
    ):
        """Builds the layers."""
        width = 2 * growth
        self.stem = Normed(3, width, 7, rngs, 2)
        norms, layers, joins, ends = [], [], [], []
        for stage, depth in enumerate(depths):
            for _ in range(depth):
                norms.append(nnx.BatchNorm(width, rngs=rngs))
                narrow = Normed(width, 4 * growth, 1, rngs)
                wide = nnx.Conv(4 * growth, growth, (3, 3), use_bias=False, rngs=rngs)
                layers.append(nnx.List([narrow, wide]))
                width += growth
            ends.append(nnx.BatchNorm(width, rngs=rngs))
            # Half as many channels between stages, as published.
            if stage < len(depths) - 1:
                joins.append(nnx.Conv(width, width // 2, (1, 1), use_bias=False, rngs=rngs))
                width //= 2
        self.norms, self.layers = nnx.List(norms), nnx.List(layers)
        self.ends, self.joins = nnx.List(ends), nnx.List(joins)
        self.depths, self.head = tuple(depths), nnx.Linear(width, classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns logits of images."""
        x = nnx.max_pool(nnx.relu(self.stem(x)), (3, 3), strides=(2, 2), padding="SAME")
        at = 0
        for stage, depth in enumerate(self.depths):
            for i in range(at, at + depth):
                narrow, wide = self.layers[i]
                new = wide(nnx.relu(narrow(nnx.relu(self.norms[i](x)))))
                x = jnp.concatenate([x, new], -1)
            at += depth
            x = nnx.relu(self.ends[stage](x))
            if stage < len(self.joins):
                x = nnx.avg_pool(self.joins[stage](x), (2, 2), strides=(2, 2))
        return self.head(x.mean((1, 2)))


_V2 = (
    (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 32, 3, 2, 3), (6, 64, 4, 2, 3), (6, 96, 3, 1, 3),
    (6, 160, 3, 2, 3), (6, 320, 1, 1, 3),
)  # fmt: skip
_B0 = (
    (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5), (6, 320, 1, 1, 3),
)  # fmt: skip

REAL: dict[str, Callable[[nnx.Rngs], nnx.Module]] = {
    "resnet18-real": partial(ResNet, depths=(2, 2, 2, 2), width=64, expansion=1, classes=1000),
    "resnet50-real": partial(ResNet, depths=(3, 4, 6, 3), width=64, classes=1000),
    "mobilenetv2-real": partial(
        Mobile, stages=_V2, stem=32, last=1280, squeeze=False, classes=1000
    ),
    "efficientnet-b0-real": partial(Mobile, stages=_B0, stem=32, last=1280, classes=1000),
    "densenet121-real": partial(DenseNet, depths=(6, 12, 24, 16), growth=32, classes=1000),
    "vit-s16-real": partial(ViT, pixels=224, patch=16, width=384, heads=6, depth=12, classes=1000),
}
"""Networks of 224 x 224 pixels and 1000 classes, as published, by name."""
