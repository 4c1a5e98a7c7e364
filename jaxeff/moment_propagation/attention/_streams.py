"""Finds attention with random weights in a residual stream, and warns of it.

A residual sum adds a block to the stream that the block is made of. All tokens share the weights of
attention, and weigh each other; what they make is one noise of all channels and tokens, which the
blocks and the head after it read as if it were independent.

Sharp edges
- Noise of an input alone isn't warned of: weights between the stream and the sum have to be random.
- A stream is followed through casts, moves and scales; other operations begin a new one.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from jaxeff.core import primitives as p
from jaxeff.moment_propagation.attention._layer import AttentionLayer
from jaxeff.moment_propagation.values import MomentsWarning
from jaxeff.program import Layer, Program
from jaxeff.program.ir import Value
from jaxeff.program.ir import primitives as prim

_MOVES = prim.SHAPE | {prim.NAME, p.convert_element_type_p, p.mul_p, p.div_p}


def attention_in_stream(program: Program, random: Collection[Value]) -> str | None:
    """Finds the first attention with random weights whose result is added to a residual stream.

    Args:
        program: A program or a loop's body, in which attention is one layer.
        random: Inputs of it that are random.

    Returns:
        Its site, None if there is none.
    """
    if not any(isinstance(layer, AttentionLayer) for layer in program.layers):
        return None
    search = _StreamSearch(set(random))
    sites = (search.visit(layer) for layer in program.layers)
    return next((site for site in sites if site is not None), None)


def warn_of_stream(site: str) -> None:
    """Warns of attention in a residual stream."""
    warnings.warn(
        f"moments: what attention {site!r} makes of random weights is added to a residual stream, "
        "whose channels and tokens share that noise; they are taken as independent, and variances "
        "may be several times too small or too large. Take method='linear', or make only the last "
        "layer random; moments_check says how far they are off, and moments(f, shared=False) "
        "leaves it so.",
        MomentsWarning,
        stacklevel=2,
    )


class _Product(NamedTuple):
    """A product of arrays or attention; values are bits.

    Attributes:
        attention: The site of attention; None for a product.
        operands: What each operand is made of, and whether it is random.
        made: The result.
    """

    attention: str | None
    operands: tuple[tuple[int, bool], ...]
    made: int


@dataclass
class _StreamSearch:
    """What has been read of a program; values are bits.

    Attributes:
        random: Random values.
        own: The bit of a value; one that only moves or scales another has that one's.
        behind: The bits of all that a value is made of, its own among them.
        products: Products and attention so far.
    """

    random: set[Value]
    own: dict[Value, int] = field(default_factory=dict)
    behind: dict[Value, int] = field(default_factory=dict)
    products: list[_Product] = field(default_factory=list)

    def visit(self, layer: Layer) -> str | None:
        """Reads a layer; returns the site of attention whose result it adds to a stream."""
        if isinstance(layer, AttentionLayer):
            self._make(layer.inputs, layer.outputs)
            self._keep(layer.site, layer.inputs, layer.outputs[0])
            return None
        if not layer.nodes:
            self._make(layer.inputs, layer.outputs)
        for node in layer.nodes:
            self._make(node.values, node.outputs, moves=node.primitive in _MOVES)
            if node.primitive in prim.LINEAR:
                self._keep(None, node.values, node.outputs[0])
            if node.primitive is p.add_p and len(node.values) == 2:
                one, other = node.values
                site = self._block(one, other) or self._block(other, one)
                if site is not None:
                    return site
        return None

    def _make(
        self, inputs: Sequence[Value], outputs: Sequence[Value], *, moves: bool = False
    ) -> None:
        """Gives bits to results."""
        for value in inputs:
            if value not in self.own:  # an input or a constant of the program
                self.own[value] = self.behind[value] = 1 << len(self.own)
        noisy = [v for v in inputs if v in self.random]
        carried = inputs if len(inputs) == 1 else noisy
        behind = 0
        for value in inputs:
            behind |= self.behind[value]
        for made in outputs:
            alike = moves and len(carried) == 1
            self.own[made] = self.own[carried[0]] if alike else 1 << len(self.own)
            self.behind[made] = behind | self.own[made]
            if noisy:
                self.random.add(made)

    def _keep(self, attention: str | None, inputs: Sequence[Value], made: Value) -> None:
        operands = tuple((self.behind[v], v in self.random) for v in inputs)
        self.products.append(_Product(attention, operands, self.own[made]))

    def _block(self, stream: Value, block: Value) -> str | None:
        """Returns the site of attention with random weights in a block that a stream gets."""
        at, behind = self.own[stream], self.behind[block]
        if at == self.own[block] or not behind & at:
            return None
        inside = [
            q for q in self.products if q.made & behind and any(of & at for of, _ in q.operands)
        ]
        # Weights aren't made of the stream.
        weighed = any(noisy and not of & at for q in inside for of, noisy in q.operands)
        sites = [q.attention for q in inside if q.attention is not None]
        return sites[0] if weighed and sites else None
