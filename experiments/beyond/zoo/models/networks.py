"""Networks of ImageNet at any size: plain, residual, dense; and published sizes."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice, pairwise

import jax
import jax.numpy as jnp
from flax import nnx

from experiments.beyond.zoo.models.images import ViT
from experiments.beyond.zoo.models.mobiles import B0, SMALL, V2, Mobile, MobileNetV3
from experiments.beyond.zoo.models.normed import Normed


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


class VGG(nnx.Module):
    """Stages of 3 x 3 convolutions, pooled, and three dense layers (Simonyan & Zisserman 2014)."""

    def __init__(
        self,
        rngs: nnx.Rngs,
        *,
        stages: Sequence[Sequence[int]] = ((8,), (12, 12)),
        dense: int = 24,
        pixels: int = 16,
        classes: int = 10,
    ):
        """Builds the layers."""
        widths = [3, *(width for stage in stages for width in stage)]
        self.layers = nnx.List(nnx.Conv(a, b, (3, 3), rngs=rngs) for a, b in pairwise(widths))
        self.sizes = tuple(map(len, stages))
        # Each stage halves the pixels; what is left is flattened, as published.
        flat = widths[-1] * (pixels // 2 ** len(stages)) ** 2
        self.dense = nnx.List(
            [nnx.Linear(flat, dense, rngs=rngs), nnx.Linear(dense, dense, rngs=rngs)]
        )
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.head = nnx.Linear(dense, classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns logits of images."""
        layers = iter(self.layers)
        for size in self.sizes:
            for layer in islice(layers, size):
                x = nnx.relu(layer(x))
            x = nnx.max_pool(x, (2, 2), strides=(2, 2))
        x = x.reshape(x.shape[0], -1)
        for dense in self.dense:
            x = self.drop(nnx.relu(dense(x)))
        return self.head(x)


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


REAL: dict[str, Callable[[nnx.Rngs], nnx.Module]] = {
    "resnet18-real": partial(ResNet, depths=(2, 2, 2, 2), width=64, expansion=1, classes=1000),
    "resnet50-real": partial(ResNet, depths=(3, 4, 6, 3), width=64, classes=1000),
    "mobilenetv2-real": partial(Mobile, stages=V2, stem=32, last=1280, squeeze=False, classes=1000),
    "mobilenetv3-real": partial(
        MobileNetV3, blocks=SMALL, stem=16, last=576, dense=1024, classes=1000
    ),
    "efficientnet-b0-real": partial(Mobile, stages=B0, stem=32, last=1280, classes=1000),
    "densenet121-real": partial(DenseNet, depths=(6, 12, 24, 16), growth=32, classes=1000),
    "vit-s16-real": partial(ViT, pixels=224, patch=16, width=384, heads=6, depth=12, classes=1000),
}
"""Networks of 224 x 224 pixels and 1000 classes, as published, by name."""
