"""Masks that are fitted to data or in training, rather than read off the weights' sizes.

After training, `optimal_brain_surgeon` and `wanda` choose the weights of a layer by what it reads;
during training, `variational_dropout` learns a rate of noise for each weight, and `kept_weights`
makes masks of the rates. Masks of magnitude alone, and the settings that say how many weights go,
are in `_masks`. All of them end as specs of `jaxeff.compression.quantized`.

Sharp edges:
    The surgeon is host code in float64: a layer of d inputs takes d^3 operations per output.
    Layers are taken in order; each reads what those before it, pruned, give it.
"""

import heapq
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff.compression import LayerQuantization
from jaxeff.compression.post_training import Matrix, PostTrained, RoundingProblem, on_grids
from jaxeff.core import as_arguments, check_number, input_batch, validate
from jaxeff.core import jax_internals as _compat
from jaxeff.program import Layer, Program, Rule, evaluate, matching, plain_rule, trace
from jaxeff.program.ir import run_nodes
from jaxeff.program.reading import argument_leaves
from jaxeff.pruning.gates import THRESHOLD, dropout_divergence, log_rate
from jaxeff.pruning.sparsity._masks import FixedMask, Magnitude, NofM


def optimal_brain_surgeon(
    f: Callable[..., Any],
    params: Any,
    batch: Any,
    spec: Mapping[str, Any],
    *,
    damping: float = 1e-4,
) -> PostTrained:
    """Removes weights one by one, and moves those that are left so that they make up for it.

    ```python
    from jaxeff.compression import quantized
    from jaxeff.nn import small_classifier
    from jaxeff.pruning.sparsity import Magnitude, optimal_brain_surgeon

    f, params, (x, y) = small_classifier()
    f, params, spec = optimal_brain_surgeon(f, params, x, {"fc2": Magnitude(0.5)})
    logits = quantized(f, spec)(params, x)     # the zeros are in the parameters already
    ```

    Args:
        f: A pure function `f(params, *args)`.
        params: The parameters of `f`.
        batch: `args` as a tuple, or the only one of them: some hundred examples.
        spec: Maps patterns of sites to `Magnitude(fraction)` or `NofM(n, m)`, which say how many
            weights go; which, is found here.
        damping: Added to the diagonal of H, in units of its mean.

    Returns:
        `f`, parameters with zeros, and the spec that reproduces them.

    Raises:
        TypeError: A method is another one.
        ValueError: The batch is empty or not finite, nothing has weights to remove, or a weight
            isn't one parameter's entries.

    References:
        Hassibi and Stork, "Optimal Brain Surgeon", NIPS 1992; layer by layer Dong et al.,
        arXiv:1705.07565; exact and by outputs Frantar and Alistarh, "Optimal Brain Compression",
        arXiv:2208.11580, algorithms 1 and 2.
    """
    check_number("optimal_brain_surgeon: damping", damping, above=0)

    def solve(problem: RoundingProblem) -> Matrix:
        return _after_surgery(problem, damping)

    return on_grids("optimal_brain_surgeon", f, params, batch, spec, solve)


def _after_surgery(problem: RoundingProblem, damping: float) -> Matrix:
    """Removes the weights of one layer that cost least, and fits those that are left.

    For one layer, min over W' with zeros of sum |x W - x W'|^2 has the Hessian H = 2 X^T X, the
    same for every output. The weight of an output that costs least goes, and the others move:

    ```text
    cost = w_p^2 / (2 [H^-1]_pp)        dw = -w_p / [H^-1]_pp  H^-1 e_p
    ```

    with H^-1 that of the inputs left to this output. Steps are taken from all outputs in the order
    of their costs until the share is reached (`Magnitude`), or within every block (`NofM`). What is
    left has then its best values, for the error is quadratic.
    """
    method, layer = share_of("optimal_brain_surgeon", problem), problem.at
    # In float64: n rank-one updates of an inverse lose several digits.
    hessian = np.asarray(layer.moment(problem.quantized, problem.quantized), np.float64)
    weights = np.asarray(problem.weights, np.float64)
    # An input that is never active makes H singular: its diagonal is raised.
    for h in hessian:
        mean = np.diag(h).mean()
        h[np.diag_indices(len(h))] += damping * mean if mean > 0 else 1.0
    columns = [
        (h, w[:, o]) for h, w in zip(hessian, weights, strict=True) for o in range(w.shape[1])
    ]
    if isinstance(method, NofM):
        blocks = layer.contraction.matrix(
            method.blocks(layer.contraction.weight_shape, problem.tensor)
        )
        block_columns = [b[:, o] for b in blocks for o in range(b.shape[1])]
        removed = [
            removal(h, w, block_column, method.m - method.n)[0]
            for (h, w), block_column in zip(columns, block_columns, strict=True)
        ]
    else:
        kept = round((1 - float(method.fraction)) * weights.size)
        removed = cheapest([removal(h, w) for h, w in columns], weights.size - kept)
    refitted_columns = [
        refitted(h, w, inputs) for (h, w), inputs in zip(columns, removed, strict=True)
    ]
    groups, inputs, outputs = weights.shape
    refitted_weights = np.stack(refitted_columns).reshape(groups, outputs, inputs).swapaxes(1, 2)
    return np.asarray(refitted_weights, np.float32)  # type: ignore[return-value]


def share_of(where: str, problem: RoundingProblem) -> Magnitude | NofM:
    """Returns the method that says how many of a layer's weights go."""
    method = problem.quantizer
    if not isinstance(method, Magnitude | NofM) or method.values is not None:
        raise TypeError(
            f"{where} at {problem.tensor.site!r} takes Magnitude(fraction) or NofM(n, m) without "
            f"values, not {method!r}; quantize what it returns."
        )
    return method


def removal(
    h: np.ndarray, w: np.ndarray, blocks: np.ndarray | None = None, removed_per_block: int = 0
) -> tuple[list[int], list[float]]:
    """Returns the weights of one output in the order in which they go, and what each step costs.

    `h` is H, `[inputs, inputs]`, regular. `blocks` is the number of each input's block, in which
    `removed_per_block` weights go; without it all are in one, and all go.
    """
    inverse, w = np.linalg.inv(h), w.copy()
    quota = {} if blocks is None else dict.fromkeys(blocks.tolist(), removed_per_block)
    removable = np.ones(len(w), bool)
    order, costs = [], []
    while removable.any():
        # The factor 1/2 of the cost is left out: it changes no order.
        diagonal = np.where(removable, np.diag(inverse), 1.0)
        cost = np.where(removable, w**2 / diagonal, np.inf)
        p = int(np.argmin(cost))
        order.append(p)
        costs.append(float(cost[p]))
        # Rank-one downdate: H^-1 of the inputs that are left, in O(d^2).
        row = inverse[p].copy()
        w = w - w[p] / row[p] * row
        inverse = inverse - np.outer(row, row) / row[p]
        # Exactly zero, not up to rounding.
        w[p], removable[p] = 0.0, False
        if blocks is not None:
            quota[int(blocks[p])] -= 1
            if not quota[int(blocks[p])]:
                removable &= blocks != blocks[p]
    return order, costs


def cheapest(removals: list[tuple[list[int], list[float]]], count: int) -> list[list[int]]:
    """Takes the first steps of several outputs, `count` in all, the cheapest next one each."""
    # One entry per output, its next step: outputs don't influence each other, so a heap
    # merges their traces in O(count log outputs) (Optimal Brain Compression, algorithm 2).
    heap = [(costs[0], o, 0) for o, (_, costs) in enumerate(removals) if costs]
    heapq.heapify(heap)
    steps_taken = [0] * len(removals)
    for _ in range(count):
        _, o, step = heapq.heappop(heap)
        steps_taken[o] = step + 1
        if step + 1 < len(removals[o][1]):
            heapq.heappush(heap, (removals[o][1][step + 1], o, step + 1))
    return [order[:n] for (order, _), n in zip(removals, steps_taken, strict=True)]


def refitted(h: np.ndarray, w: np.ndarray, removed: list[int]) -> np.ndarray:
    """Returns the optimal weights of an output without some: the result of all steps."""
    # One solve instead of the accumulated updates: the same optimum without their rounding errors.
    keep = np.ones(len(w), bool)
    keep[removed] = False
    new = np.zeros_like(w)
    if keep.any():
        new[keep] = np.linalg.solve(h[np.ix_(keep, keep)], h[keep] @ w)
    return new


_SLACK = 1e-6
"""A share of .9 in floating point leaves a tenth, not a bit less."""


@validate(batch=input_batch)
def wanda(f: Callable[..., Any], params: Any, batch: Any, spec: Mapping[str, Any]) -> PostTrained:
    """Removes weights by their magnitude times the norm of what they multiply.

    The score of weight w_ij is |w_ij| ||x_j||_2, with the norm of input j over the batch; weights
    compare with those of the same output (eq. 1). None that stays is changed.

    ```python
    from jaxeff.compression import Uniform, quantized
    from jaxeff.nn import small_classifier
    from jaxeff.pruning.sparsity import NofM, wanda

    f, params, (x, y) = small_classifier()
    f, params, spec = wanda(f, params, x, {"fc2": NofM(2, 4)})
    logits = quantized(f, spec)(params, x)     # the zeros are in the parameters already
    eight_bits = NofM(2, 4, values=Uniform(8, symmetric=True))
    logits = quantized(f, {"fc2": eight_bits})(params, x)     # the same zeros, the rest in 8 bits
    ```

    Args:
        f: A pure function `f(params, *args)`.
        params: The parameters of `f`.
        batch: `args` as a tuple, or the only one of them: some hundred examples.
        spec: Maps patterns of sites to `Magnitude(fraction)`, the share of every output's weights
            that goes at least, or `NofM(n, m)`.

    Returns:
        `f`, parameters with zeros, and the spec that reproduces them.

    Raises:
        TypeError: A method is another one.
        ValueError: The batch is empty or not finite, nothing has weights to remove, or a weight
            isn't one parameter's entries.

    References:
        Sun et al., "A Simple and Effective Pruning Approach for Large Language Models",
        arXiv:2306.11695.
    """

    def solve(problem: RoundingProblem) -> Matrix:
        method, layer = share_of("wanda", problem), problem.at
        # The mean in the place of the sum: both give the same order.
        norms = np.sqrt(np.asarray(layer.squares(problem.quantized), np.float64))
        scores = np.abs(np.asarray(problem.weights, np.float64)) * norms[:, :, None]
        if isinstance(method, NofM):
            weight = layer.contraction.weight(scores.astype(np.float32))
            mask = layer.contraction.matrix(method.mask(weight, problem.tensor))
        else:
            # Rounded down, so that a mask of the whole array by magnitude keeps all of them.
            kept = int((1 - float(method.fraction)) * scores.shape[1] + _SLACK)
            # Stable: of equal scores the first stay, and no more than asked.
            order = np.argsort(-scores, axis=1, kind="stable")
            mask = np.argsort(order, axis=1, kind="stable") < kept
        return np.where(mask, problem.weights, np.float32(0))  # type: ignore[return-value]

    return on_grids("wanda", f, params, batch, spec, solve)


LogVariances = Mapping[str, Float[Array, "..."]]


def log_variances(
    f: Callable[..., Any], params: Any, batch: Any, patterns: Sequence[str], *, start: float = -8.0
) -> dict[str, Float[Array, "..."]]:
    """Initializes the learned log variances, log sigma^2, of the weights of some layers.

    ```python
    from jaxeff.nn import small_classifier
    from jaxeff.pruning.sparsity import log_variances

    f, params, (x, y) = small_classifier()
    assert log_variances(f, params, x, ["fc2"])["fc2"].shape == (32, 10)     # as the kernel
    ```

    Args:
        f: A pure function `f(params, *args)`.
        params: The parameters of `f`.
        batch: `args` as a tuple, or the only one of them.
        patterns: Sites; a layer that is used again has the numbers of its first use.
        start: The first log sigma^2.

    Returns:
        By site, an array of the weight's shape as the layer reads it.

    Raises:
        ValueError: A pattern matches no site, or none has one weight and lies outside loops.
    """
    check_number("log_variances: start", start)
    args = as_arguments(batch)
    program = trace(f, params, *args)
    chosen = set(matching(patterns, program))
    weights = {
        layer.base: layer.inputs[layer.weights[0]].aval
        for layer in program.layers
        if layer.site in chosen and _has_one_weight(layer)
    }
    log_variance = {site: jnp.full(w.shape, start, w.dtype) for site, w in weights.items()}
    if not log_variance:
        raise ValueError(
            f"{list(patterns)} match no layer outside loops that multiplies by one weight."
        )
    return log_variance


def variational_dropout(f: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the model with Gaussian dropout on every weight, at rates that are learnt.

    A weight is N(theta, alpha theta^2): theta is the parameter, and log(alpha theta^2) is learnt
    beside it. Instead of weights their sums are drawn, for every example anew (local
    reparametrization): a layer's result has the mean x theta and the variance x^2 sigma^2.

    ```python
    import jax
    import optax

    from jaxeff.compression import quantized
    from jaxeff.nn import small_classifier
    from jaxeff.pruning.sparsity import kept_weights, log_variances, variational_dropout
    from jaxeff.training import fit, stateless

    f, params, data = small_classifier()
    g = variational_dropout(f)

    def loss(key, learnt, batch):
        logits, divergence = g(key, *learnt, batch[0])
        fit = optax.softmax_cross_entropy_with_integer_labels(logits, batch[1]).mean()
        return fit + divergence / len(data[1])

    learnt = params, log_variances(f, params, data[0], ["*:linear"])
    run = fit(jax.random.key(0), stateless(loss), learnt, data,
              optimizer=optax.adam(1e-3), epochs=1, batch_size=64)
    spec = kept_weights(f, *run.params, data[0])            # masks, where log alpha < 3
    logits = quantized(f, spec)(run.params[0], data[0])
    ```

    Args:
        f: A pure function `f(params, *args)`.

    Returns:
        A pure function `g(key, params, log_variance, *args) -> (result, divergence)`; the
        divergence is to be added to a loss that is a sum over examples, or divided by their number.

    Raises:
        ValueError: When called: there are variances for a site that isn't, or that doesn't
            multiply by one weight; they are listed.

    References:
        Molchanov et al., "Variational Dropout Sparsifies Deep Neural Networks", arXiv:1701.05369.
        Kingma et al., "Variational Dropout and the Local Reparameterization Trick",
        arXiv:1506.02557, section 2.3.
    """

    def g(
        key: PRNGKeyArray, params: Any, log_variance: LogVariances, *args: Any, **kwargs: Any
    ) -> tuple[Any, Float[Array, ""]]:
        program = trace(f, params, *args, **kwargs)
        rule, divergences = _local_reparametrization(program, log_variance)
        outputs = evaluate(program, rule, key, argument_leaves((params, *args), kwargs))
        total = jnp.zeros((), jnp.float32)
        for divergence in divergences:
            total = total + divergence.astype(jnp.float32)
        return jax.tree.unflatten(program.out_tree, outputs), total

    return g


def kept_weights(
    f: Callable[..., Any],
    params: Any,
    log_variance: LogVariances,
    batch: Any,
    *,
    threshold: float = THRESHOLD,
) -> dict[str, LayerQuantization | None]:
    """Returns a spec of masks that keep the weights with rates below a threshold.

    ```python
    from jaxeff.nn import small_classifier
    from jaxeff.pruning.sparsity import kept_weights, log_variances

    f, params, (x, y) = small_classifier()
    log_variance = log_variances(f, params, x, ["fc2"])     # after training: those it came to
    spec = kept_weights(f, params, log_variance, x)
    assert list(spec) == ["fc2"]
    ```

    Args:
        f: A pure function `f(params, *args)`.
        params: The parameters of `f`.
        log_variance: Result of training.
        batch: `args` as a tuple, or the only one of them.
        threshold: Largest log alpha of a kept weight; alpha is its variance over its square.
    """
    args = as_arguments(batch)
    program = trace(f, params, *args)

    @jax.jit
    def masks(leaves: list[Any], log_variance: LogVariances) -> dict[str, Array]:
        keeps: dict[str, Array] = {}

        def rule(layer: Layer, key: Any, *values: Any) -> Sequence[Any]:
            if layer.base in log_variance and _has_one_weight(layer) and layer.base not in keeps:
                log_alpha = log_rate(values[layer.weights[0]], log_variance[layer.base])
                keeps[layer.base] = log_alpha < threshold
            return plain_rule(layer, key, *values)

        evaluate(program, rule, None, leaves)
        return keeps

    keeps = masks(argument_leaves((params, *args), {}), log_variance)
    return {site: LayerQuantization(weights=FixedMask(keep)) for site, keep in keeps.items()}


def _local_reparametrization(
    program: Program, log_variance: LogVariances
) -> tuple[Rule, list[Array]]:
    """Makes a rule that draws results, and the list that it puts the layers' divergences into."""
    known = {layer.base for layer in program.layers if layer.site and _has_one_weight(layer)}
    unknown = sorted(set(log_variance) - known)
    if unknown:
        raise ValueError(
            f"there are variances for {unknown}, which are no layers outside loops that multiply "
            f"by one weight; those are {sorted(known)}."
        )
    divergences: list[Array] = []
    # Divergences can't leave the body of a loop, whose layers are no layers of the program itself.
    outside = set(program.layers)

    def rule(layer: Layer, key: Any, *values: Any) -> Sequence[Any]:
        if not (layer.base in log_variance and layer in outside and _has_one_weight(layer)):
            return plain_rule(layer, key, *values)
        log_sigma2, index = log_variance[layer.base], layer.weights[0]
        if layer.occurrence == 0:
            # A layer that is used again has the same weights: their divergence counts once.
            divergences.append(dropout_divergence(log_rate(values[index], log_sigma2)).sum())
        # Local reparametrization (Kingma et al., arXiv:1506.02557, section 2.3): the layer's own
        # product of squared inputs and variances is the variance of its result.
        squares = [jnp.square(v) if i in layer.data else v for i, v in enumerate(values)]
        squares[index] = jnp.exp(log_sigma2)

        assert layer.op is not None
        result = layer.op.outputs[0]
        up_to_product = layer.nodes[: layer.nodes.index(layer.op) + 1]
        (variance,) = run_nodes(up_to_product, layer.inputs, squares, (result,))
        # The root has no gradient at zero, where every input of an entry is zero.
        least = jnp.asarray(jnp.finfo(variance.dtype).tiny, variance.dtype)
        noise = jax.random.normal(key, variance.shape, variance.dtype)
        noise = jnp.sqrt(jnp.maximum(variance, least)) * noise

        # The noise belongs to the product: a bias is added after it.
        def noisy(eqn: Any, *operands: Any) -> list[Any]:
            outputs = _compat.bind(eqn, *operands)
            is_op = layer.op is not None and eqn is layer.op.eqn
            return [outputs[0] + noise, *outputs[1:]] if is_op else outputs

        return run_nodes(layer.nodes, layer.inputs, values, layer.outputs, noisy)

    return rule, divergences


def _has_one_weight(layer: Layer) -> bool:
    return layer.kind == "linear" and len(layer.weights) == 1 and len(layer.data) == 1
