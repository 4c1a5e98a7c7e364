"""Networks of inverted residuals: MobileNetV2 and V3, EfficientNet."""

from collections.abc import Callable, Sequence

import jax
from flax import nnx

from experiments.beyond.zoo.models.normed import Normed

Act = Callable[[jax.Array], jax.Array]


class Inverted(nnx.Module):
    """An inverted residual (Sandler et al. 2018), with squeeze and excitation if wanted."""

    def __init__(
        self,
        width: int,
        out: int,
        size: int,
        stride: int,
        hidden: int,
        rngs: nnx.Rngs,
        *,
        act: Act,
        squeezed: int = 0,
        acts: tuple[Act, Act] = (nnx.silu, nnx.sigmoid),
    ):
        """Builds the layers: `acts` are those of `squeezed` channels and of the scale they make."""
        self.expand = Normed(width, hidden, 1, rngs) if hidden != width else None
        self.depthwise = Normed(hidden, hidden, size, rngs, stride, hidden)
        self.squeeze = nnx.Linear(hidden, squeezed, rngs=rngs) if squeezed else None
        self.excite = nnx.Linear(squeezed, hidden, rngs=rngs) if squeezed else None
        self.project = Normed(hidden, out, 1, rngs)
        self.act, self.acts = act, acts
        self.is_residual = stride == 1 and width == out

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns features of the block."""
        y = x if self.expand is None else self.act(self.expand(x))
        y = self.act(self.depthwise(y))
        if self.squeeze is not None and self.excite is not None:
            inner, outer = self.acts
            y = y * outer(self.excite(inner(self.squeeze(y.mean((1, 2))))))[:, None, None]
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
        self.act = nnx.silu if squeeze else nnx.relu6
        self.stem, before = Normed(3, stem, 3, rngs, 2), stem
        blocks = []
        for expand, width, count, stride, size in stages:
            for i in range(count):
                squeezed = max(1, before // 4) if squeeze else 0
                step, hidden = 1 if i else stride, before * expand
                blocks.append(
                    Inverted(
                        before, width, size, step, hidden, rngs, act=self.act, squeezed=squeezed
                    )
                )
                before = width
        self.blocks, self.last = nnx.List(blocks), Normed(before, last, 1, rngs)
        self.head = nnx.Linear(last, classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns logits of images."""
        x = self.act(self.stem(x))
        for block in self.blocks:
            x = block(x)
        return self.head(self.act(self.last(x)).mean((1, 2)))


Block = tuple[int, int, int, bool, bool, int]
"""Size of the kernel, expanded width, width, whether squeezed, whether by hard swish, stride."""


class MobileNetV3(nnx.Module):
    """Blocks with hard gates, and a head of two layers (Howard et al. 2019)."""

    def __init__(
        self,
        rngs: nnx.Rngs,
        *,
        blocks: Sequence[Block] = ((3, 8, 8, True, False, 2), (5, 24, 12, True, True, 1)),
        stem: int = 8,
        last: int = 24,
        dense: int = 32,
        classes: int = 10,
    ):
        """Builds the layers."""
        self.stem, before = Normed(3, stem, 3, rngs, 2), stem
        made = []
        for size, hidden, width, squeeze, hard, stride in blocks:
            made.append(
                Inverted(
                    before, width, size, stride, hidden, rngs,
                    act=nnx.hard_swish if hard else nnx.relu,
                    squeezed=_eighths(hidden / 4) if squeeze else 0,
                    acts=(nnx.relu, nnx.hard_sigmoid),
                )
            )  # fmt: skip
            before = width
        self.blocks, self.last = nnx.List(made), Normed(before, last, 1, rngs)
        self.dense = nnx.Linear(last, dense, rngs=rngs)
        self.head = nnx.Linear(dense, classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns logits of images."""
        x = nnx.hard_swish(self.stem(x))
        for block in self.blocks:
            x = block(x)
        x = nnx.hard_swish(self.last(x)).mean((1, 2))
        return self.head(nnx.hard_swish(self.dense(x)))


def _eighths(width: float) -> int:
    """Rounds to a multiple of eight, by a tenth downwards at most, as the published code does."""
    near = max(8, int(width + 4) // 8 * 8)
    return near + 8 if near < 0.9 * width else near


V2 = (
    (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 32, 3, 2, 3), (6, 64, 4, 2, 3), (6, 96, 3, 1, 3),
    (6, 160, 3, 2, 3), (6, 320, 1, 1, 3),
)  # fmt: skip
"""Stages of MobileNetV2."""
B0 = (
    (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5), (6, 320, 1, 1, 3),
)  # fmt: skip
"""Stages of EfficientNet-B0."""
SMALL = (
    (3, 16, 16, True, False, 2), (3, 72, 24, False, False, 2), (3, 88, 24, False, False, 1),
    (5, 96, 40, True, True, 2), (5, 240, 40, True, True, 1), (5, 240, 40, True, True, 1),
    (5, 120, 48, True, True, 1), (5, 144, 48, True, True, 1), (5, 288, 96, True, True, 2),
    (5, 576, 96, True, True, 1), (5, 576, 96, True, True, 1),
)  # fmt: skip
"""Blocks of MobileNetV3-Small."""
