"""Random networks: which blocks may follow which, and a whole one from a seed."""

from typing import NamedTuple

import jax
import numpy as np

from experiments.beyond.fuzz import blocks, layers, sharing
from experiments.beyond.fuzz.drawing import Block, Draw, Rule, Shape, chain
from experiments.beyond.zoo.models import Subject

_ANYWHERE: tuple[Rule, ...] = (
    layers.dense, layers.dense, layers.norm, layers.norm, layers.activation, layers.activation,
    layers.activation, blocks.residual, blocks.residual, blocks.concatenation, blocks.gate,
    blocks.moved, blocks.reshaped, sharing.again, sharing.tied, sharing.outer, sharing.readers,
    sharing.siamese,
)  # fmt: skip
_OVER_POSITIONS: tuple[Rule, ...] = (
    layers.convolution, layers.convolution, layers.convolution, layers.transposed, layers.pool,
    layers.pool, blocks.squeeze_excite, blocks.pooled, blocks.flattened, sharing.scales,
    sharing.pyramid,
)  # fmt: skip
RULES: dict[int, tuple[Rule, ...]] = {
    1: _ANYWHERE,
    2: (
        *_ANYWHERE, *_OVER_POSITIONS, blocks.attention, blocks.attention, blocks.recurrence,
        blocks.recurrence, blocks.recurrence, blocks.mixing, blocks.positions,
    ),
    3: (*_ANYWHERE, *_OVER_POSITIONS, layers.convolution, layers.convolution),
}  # fmt: skip
"""What may stand where examples have so many axes; a rule that stands twice is taken as often."""

MOST = 400
"""Values of an example, above which positions are pooled."""

_WORDS = 11


class Network(NamedTuple):
    """A random network: its blocks in words and as one, size of a batch, and eight examples.

    Its seed is kept for what draws something else from it.
    """

    words: str
    block: Block
    batch: int
    examples: jax.Array
    seed: int = 0

    @property
    def others(self) -> jax.Array:
        """A batch of examples beside those of `subject`."""
        return self.examples[self.batch : 2 * self.batch]

    def subject(self, batch: int | None = None) -> Subject:
        """The network with so many of its examples; as many as its seed says, if not told."""
        x = self.examples[: batch or self.batch]
        f, params = self.block.apply, self.block.params
        return Subject("fuzz", f, params, (x,), jax.jit(f)(params, x), "")


def network(seed: int, most: int) -> Network:
    """Draws a network of at least two and at most so many blocks, and a layer after them."""
    d = Draw(seed)
    kind = d.one(("vector", "sequence", "sequence", "image", "image", "tokens"))
    batch, parts = d.one((1, 1, 2, 3, 4)), []
    examples = 8
    shape: Shape
    if kind == "tokens":
        length, width = d.one((3, 4, 5, 6)), d.width()
        x, shape = d.tokens(_WORDS, examples, length), (length, width)
        parts.append(Block("embedding", {"w": d.normal(_WORDS, width)}, lambda p, x: p["w"][x]))
    else:
        sizes = {"vector": 0, "sequence": 1, "image": 2}[kind]
        shape = (*(d.one((3, 4, 5, 6, 7)) for _ in range(sizes)), d.width())
        x = d.normal(examples, *shape)
    start = "x".join(map(str, shape))
    count = len(parts) + d.one(range(2, most + 1))
    while len(parts) < count:
        block = d.one(RULES[len(shape)])(d, shape)
        if block is None or 0 in (after := block.shape(shape)):
            continue
        parts.append(block)
        shape = after
        if np.prod(shape) > MOST:
            parts.append(blocks.pooled(d, shape))
            shape = parts[-1].shape(shape)
    parts.append(layers.dense(d, shape, d.one((1, 2, 3, 5, 10))))
    words = f"{kind} {start}: " + ", ".join(block.name for block in parts)
    return Network(words, chain(parts, "network"), batch, x, seed)
