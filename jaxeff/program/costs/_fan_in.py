"""The fan-in of parameters: how many inputs each sums per output, read from the program.

The axes of a dot product or convolution give it, whatever the layout of the parameter: an attention
kernel `[in, heads, size]` has fan-in `in`, the projection after it `[heads, size, out]` has
`heads * size`, a convolution window x channels of its group. Through reshapes, concatenation and
fake quantization a parameter takes the fan-in of the product that its values reach.

Sharp edges:
    A transposed convolution's inputs are spread out with zeros between them: its fan-in is the mean
    over outputs, window x channels over the product of the strides (an axis counts once at least).
    A parameter with several uses has its largest fan-in: a tied embedding that of its projection.
    Only products with data count, not those that prepare a weight: of `x @ (a @ b)` both have that
    of the product with `x`. A sum written as `(x[:, :, None] * w).sum(1)` is no product.
"""

from collections.abc import Iterator

from jaxeff.program.ir import Contraction, Layer, Node, Program
from jaxeff.program.ir import primitives as prim

_READ = (
    prim.LINEAR | prim.ELEMENTWISE | prim.WINDOW.keys() | prim.REDUCTION.keys() | prim.SHAPE
    | prim.CUSTOM | prim.CONTROL
)  # fmt: skip


def fan_ins(program: Program) -> dict[str, float | None]:
    """Returns the fan-in of every parameter that a program reads.

    Args:
        program: Result of `trace`.

    Returns:
        By the parameter's path: the terms that a product sums for each of its outputs; 0 where no
        product reads it, as for a bias, a scale or a look-up; None where that is unknown, because
        something reads it whose inside isn't read (a `shard_map`, a call of foreign code).
    """
    products: dict[str, float] = {}
    unknown: set[str] = set()
    every = {path for v in program.inputs if v.is_weight for path in v.leaves}
    for layer in program.walk():
        for node in _nodes(layer):
            weights = [v for v in node.values if v.is_weight]
            leaves = {path for v in weights for path in v.leaves}
            every |= leaves
            if node.primitive not in _READ:
                unknown |= leaves
            elif node.primitive in prim.LINEAR and any(v.is_data for v in node.values):
                fan_in = Contraction.of(node).fan_in
                for path in leaves:
                    products[path] = max(products.get(path, 0.0), fan_in)
    return {path: products.get(path, None if path in unknown else 0.0) for path in every}


def _nodes(layer: Layer) -> Iterator[Node]:
    # A loop's own node reads what its body reads, which is walked on its own.
    return (node for node in layer.nodes if not node.graphs)
