"""A function as features and a last dense layer, and the fan-in of its parameters.

Last-layer methods (a Laplace approximation, distances in feature space) treat a network as `f =
features @ kernel + bias`: `last_layer` says which leaves of the parameters these are, `inputs_of`
makes the function of the features. `fan_ins` reads off the program how many inputs each parameter
sums per output, for priors. Both are traced, so they hold for any model that `jaxeff` reads.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxeff.core import as_arguments
from jaxeff.program._evaluate import evaluate, plain_rule
from jaxeff.program.ir import Contraction, Layer, Node, Program
from jaxeff.program.ir import primitives as prim
from jaxeff.program.reading import argument_leaves, trace


class LastLayer(NamedTuple):
    """A dense layer whose result is the function's.

    Attributes:
        site: The name of the layer.
        kernel: The index of its kernel among the leaves of the parameters, `[features, outputs]`.
        bias: The index of its bias, `[outputs]`; None if it has none.
    """

    site: str
    kernel: int
    bias: int | None


def inputs_of(f: Callable[..., Any], site: str) -> Callable[..., Array]:
    """Makes a function that returns the features that a last layer reads.

    ```python
    from jaxeff.nn import small_classifier
    from jaxeff.program.costs import inputs_of

    f, params, (x, y) = small_classifier()
    features = inputs_of(f, "fc2")(params, x)           # [batch, 32]; f = features @ kernel + bias
    ```

    Args:
        f: A pure function `f(params, *args)`.
        site: The layer's name.

    Returns:
        A function of the arguments of `f` with the layer's data input; XLA leaves out what comes
        after.

    Raises:
        ValueError: When called: there is no such site, it lies inside a loop or branch, or has
            several data inputs.
    """

    def features(*args: Any, **kwargs: Any) -> Array:
        program = trace(f, *args, **kwargs)
        layer = find(program, site)
        if len(layer.data) != 1:
            raise ValueError(f"{site} has {len(layer.data)} data inputs, not one")
        operands: list[Array] = []

        def rule(evaluated: Layer, key: Any, *values: Any) -> Sequence[Any]:
            if evaluated.site == site:
                operands.append(values[layer.data[0]])
            return plain_rule(evaluated, key, *values)

        evaluate(program, rule, None, argument_leaves(args, kwargs))
        return operands[0]

    return features


def last_layer(
    f: Callable[..., Any], params: Any, batch: Any, site: str, *, positions: bool = False
) -> LastLayer:
    """Returns the last layer of a function.

    ```python
    from jaxeff.nn import small_classifier
    from jaxeff.program.costs import last_layer

    f, params, (x, y) = small_classifier()
    last_layer(f, params, x, "fc2").kernel              # the index of its leaf in params
    ```

    Args:
        f: A pure function `f(params, *args)`.
        params: The parameters of `f`.
        batch: Inputs, `args` as a tuple or the only one of them; shapes are enough.
        site: The layer's name.
        positions: Whether features may have axes of positions, `[batch, ..., n]`.

    Raises:
        ValueError: The site isn't a dense layer of features `[batch, n]`, its result isn't the
            function's, its kernel or bias is no parameter as it is, or another layer reads it.
    """
    program = trace(f, params, *as_arguments(batch))
    layer = find(program, site)
    reason = _what_is_wrong(program, layer, positions)
    if reason:
        linear = [other.site for other in program.layers if other.kind == "linear"]
        raise ValueError(
            f"{site} is no linear last layer: {reason}. Name the dense layer whose result f "
            f"returns (linear layers here: {', '.join(linear) or 'none'}), and let f return its "
            "result as it is, logits instead of probabilities"
        )
    # The parameters are a program's first inputs, leaf by leaf.
    kernel = list(program.inputs).index(layer.inputs[layer.weights[0]])
    if not layer.biases:
        return LastLayer(site, kernel, None)
    # A bias is read reshaped or broadcast: it is the input of the same path.
    indices = {v.path: i for i, v in enumerate(program.inputs) if v.is_weight}
    return LastLayer(site, kernel, indices[layer.inputs[layer.biases[0]].path])


def find(program: Program, site: str) -> Layer:
    """Returns the layer of a site outside loops and branches."""
    for layer in program.layers:
        if layer.site == site and layer.kind != "control flow":
            return layer
    if any(layer.site == site for layer in program.sites):
        raise ValueError(f"{site} lies inside a loop or branch")
    sites = ", ".join(layer.site for layer in program.layers if layer.site)
    raise ValueError(f"there is no site {site!r}; there are {sites or 'none'}")


def _what_is_wrong(program: Program, layer: Layer, positions: bool) -> str:
    """Says why a layer isn't the last dense one; nothing if it is."""
    op = layer.op
    if layer.kind != "linear" or op is None or op.primitive is not prim.p.dot_general_p:
        return f"its kind is {layer.kind}, of {layer.outputs[0].aval.str_short()}"
    if len(program.outputs) != 1 or program.outputs[0] is not layer.outputs[0]:
        reader = next(
            (other.site for other in program.layers if layer.outputs[0] in other.inputs), "others"
        )
        return f"its result goes to {reader}"
    product = Contraction.of(op)
    data = layer.inputs[layer.data[0]]
    summed = product.summed(0), product.summed(1)
    rank = data.aval.ndim if positions else 2
    if data.aval.ndim != rank or summed != ((rank - 1,), (0,)) or product.batch(0):
        return f"it multiplies {data.aval.str_short()} along other axes than [batch, features]"
    if len(layer.weights) != 1 or layer.inputs[layer.weights[0]] not in program.inputs:
        return "its kernel is computed from its parameter"
    if len(layer.biases) > 1:
        return "it has several biases"
    sizes = {v.path: v.aval.size for v in program.inputs if v.is_weight}
    for i in layer.biases:
        bias = layer.inputs[i]
        if sizes.get(bias.path) != layer.outputs[0].aval.shape[-1]:
            return "its bias is not one number for each output"
        if not is_plain_bias(program, [v.path for v in program.inputs].index(bias.path)):
            return "its bias is computed from its parameter"
    # A kernel that is tied to another layer changes that one too: the model wouldn't be linear in
    # it.
    path = layer.inputs[layer.weights[0]].path
    readers = [
        other.site for other in program.sites
        if other is not layer and any(path in v.leaves for v in other.inputs if v.is_weight)
    ]  # fmt: skip
    return f"{', '.join(readers)} reads its kernel, too" if readers else ""


def is_plain_bias(program: Program, index: int) -> bool:
    """Tells whether an input of a program is added as it is, but for its shape, by its one reader.

    A bias that is scaled, or a factor that is multiplied first, is no weight whose input is one.
    """
    moved = {program.inputs[index]}
    for node in (node for layer in program.layers for node in layer.nodes):
        if moved.isdisjoint(node.values):
            continue
        if node.primitive not in prim.MOVES:
            return node.primitive is prim.p.add_p
        moved.update(node.outputs)
    return False


def flat(params: Any, layer: LastLayer) -> Array:
    """Joins kernel and bias to one matrix `[features (+ 1), outputs]`, the bias last."""
    leaves = jax.tree.leaves(params)
    kernel = jnp.asarray(leaves[layer.kernel])
    if layer.bias is None:
        return kernel
    bias = jnp.asarray(leaves[layer.bias]).reshape(1, -1)
    return jnp.concatenate([kernel, bias], axis=0)


def with_flat(params: Any, layer: LastLayer, matrix: Array) -> Any:
    """Replaces kernel and bias; leading axes of the matrix become theirs."""
    leaves, structure = jax.tree.flatten(params)
    rows = leaves[layer.kernel].shape[0]
    leaves[layer.kernel] = matrix[..., :rows, :]
    if layer.bias is not None:
        shape = jnp.shape(leaves[layer.bias])
        leaves[layer.bias] = matrix[..., rows, :].reshape(*matrix.shape[:-2], *shape)
    return jax.tree.unflatten(structure, leaves)


def with_constant(features: Array, layer: LastLayer) -> Array:
    """Appends a feature of 1 where the layer has a bias."""
    if layer.bias is None:
        return features
    ones = jnp.ones((*features.shape[:-1], 1), features.dtype)
    return jnp.concatenate([features, ones], axis=-1)


_READ = (
    prim.LINEAR | prim.ELEMENTWISE | prim.WINDOW.keys() | prim.REDUCTION.keys() | prim.SHAPE
    | prim.CUSTOM | prim.CONTROL
)  # fmt: skip


def fan_ins(program: Program) -> dict[str, float | None]:
    """Returns the fan-in of every parameter: how many inputs an output of its product sums.

    The axes of a dot product or convolution give it, whatever the layout of the parameter: an
    attention kernel `[in, heads, size]` has fan-in `in`, the projection after it `[heads, size,
    out]` has `heads * size`, a convolution window x channels of its group. Through reshapes,
    concatenation and fake quantization a parameter takes the fan-in of the product that its values
    reach.

    Sharp edges:
        A transposed convolution's inputs are spread out with zeros between them: its fan-in is the
        mean over outputs, window x channels over the product of the strides (an axis counts once at
        least).
        A parameter with several uses has its largest fan-in: a tied embedding that of its
        projection.
        Only products with data count, not those that prepare a weight: of `x @ (a @ b)` both have
        that of the product with `x`. A sum written as `(x[:, :, None] * w).sum(1)` is no product.

    Args:
        program: Result of `trace`.

    Returns:
        By the parameter's path: the terms that a product sums for each of its outputs; 0 where no
        product reads it, as for a bias, a scale or a look-up; None where that is unknown, because
        something reads it whose inside isn't read (a `shard_map`, a call of foreign code).
    """
    products: dict[str, float] = {}
    unknown: set[str] = set()
    paths = {path for v in program.inputs if v.is_weight for path in v.leaves}
    for layer in program.walk():
        for node in _nodes(layer):
            weights = [v for v in node.values if v.is_weight]
            leaves = {path for v in weights for path in v.leaves}
            paths |= leaves
            if node.primitive not in _READ:
                unknown |= leaves
            elif node.primitive in prim.LINEAR and any(v.is_data for v in node.values):
                fan_in = Contraction.of(node).fan_in
                for path in leaves:
                    products[path] = max(products.get(path, 0.0), fan_in)
    return {path: products.get(path, None if path in unknown else 0.0) for path in paths}


def _nodes(layer: Layer) -> Iterator[Node]:
    # A loop's own node reads what its body reads, which is walked on its own.
    return (node for node in layer.nodes if not node.graphs)
