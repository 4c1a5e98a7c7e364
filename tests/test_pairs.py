"""Every ordered pair of transforms, `outer(inner(f))`, against one network written by hand.

The network has two dense layers, and each transform is written a second time as what it does to one
layer's values, in a few lines (`Case.hand`). A pair of transforms is these lines one around the
other: the outer one acts first on what enters a layer and last on what leaves it. Random values are
pairs of a mean and a variance there, with rules of their own that Monte Carlo stands behind.

The pairs are the square of `CASES`, which has every transform that `jaxeff` exports. What can't be
right is in `REFUSED`, with what its error says; anything else has to equal the network by hand, and
to differ from it without the outer or without the inner transform.
"""

import inspect
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.stats import norm

import jaxeff
from jaxeff.analog_hardware import Crossbar, Linear
from jaxeff.compression import Int
from jaxeff.ensembles import Members
from jaxeff.photonics import ChaoticLight
from jaxeff.pruning import Plan, PlanError
from tests.test_laws import TRANSFORMS

KEY = jax.random.key(0)
X = jax.random.uniform(jax.random.key(1), (3, 4)) * jnp.array([[1.0], [0.4], [2.0]])
PARAMS = {
    "fc1": {
        "bias": jnp.array([0.9, -0.2, 0.5, 0.3, 0.8, 0.1]),
        "kernel": 0.6 * jax.random.normal(jax.random.key(2), (4, 6)),
    },
    "fc2": {
        "bias": jnp.array([0.2, -0.4]),
        "kernel": jax.random.normal(jax.random.key(3), (3, 2)),
    },
}
MEMBERS = 2


def network(params, x):
    hidden = jax.nn.relu(x @ params["fc1"]["kernel"] + params["fc1"]["bias"])
    pooled = hidden.reshape(-1, hidden.shape[-1] // 2, 2).mean(-1)
    return pooled @ params["fc2"]["kernel"] + params["fc2"]["bias"]


# The same by hand --------------------------------------------------------------------------------
# Values are arrays, or pairs of a mean and a variance. A hand is a function of a site and of the
# layer inside, which returns the layer as the transform computes it.

Hand = Callable[[str, Callable[..., Any]], Callable[..., Any]]


def mean_of(value):
    return value[0] if isinstance(value, tuple) else value


def moved(value, function, slope=1.0):
    """A function of each entry, y = function(x), whose slope is known."""
    if not isinstance(value, tuple):
        return function(value)
    return function(value[0]), slope**2 * value[1]


def dense(x, kernel, bias):
    if not isinstance(kernel, tuple):
        return mean_of(x) @ kernel + bias
    mean = mean_of(x) @ kernel[0] + bias[0]
    var = mean_of(x) ** 2 @ kernel[1] + bias[1]
    if isinstance(x, tuple):
        var += x[1] @ (kernel[0] ** 2 + kernel[1])
    return mean, var


def relu(x):
    if not isinstance(x, tuple):
        return jnp.maximum(x, 0)
    mean, var = x
    deviation = jnp.sqrt(jnp.maximum(var, 1e-12))
    z = mean / deviation
    first = mean * norm.cdf(z) + deviation * norm.pdf(z)
    second = (mean**2 + var) * norm.cdf(z) + mean * deviation * norm.pdf(z)
    return first, second - first**2


def average(x):
    pairs = lambda a: a.reshape(-1, a.shape[-1] // 2, 2)  # noqa: E731
    if not isinstance(x, tuple):
        return pairs(x).mean(-1)
    return pairs(x[0]).mean(-1), pairs(x[1]).sum(-1) / 4


def by_hand(hands: Sequence[Hand], params, x):
    """The network under transforms, the inner one first."""

    def layer(site, plain, *values):
        for hand in hands:
            plain = hand(site, plain)
        y = plain(*values)  # slopes are taken through means alone
        return (y[0], jax.lax.stop_gradient(y[1])) if isinstance(y, tuple) else y

    x = layer("input", lambda data: data, x)
    x = layer("fc1", dense, x, params["fc1"]["kernel"], params["fc1"]["bias"])
    x = layer("mean", average, layer("relu", relu, x))
    return layer("fc2", dense, x, params["fc2"]["kernel"], params["fc2"]["bias"])


class Known:
    """Noise that is the same in every draw: a shift and a factor."""

    at = "output"

    def perturb(self, key, x):
        return 1.3 * x + 0.4


class KnownAtInput(Known):
    at = "input"


class KnownAtWeights(Known):
    at = "weights"


def noisy_hand(site, plain):
    perturbed = lambda v: moved(v, lambda a: 1.3 * a + 0.4, 1.3)  # noqa: E731

    def run(*values):
        if site == "relu":
            return perturbed(plain(*values))
        if site == "fc2":
            return plain(perturbed(values[0]), *values[1:])
        if site == "fc1":
            return plain(values[0], perturbed(values[1]), values[2])
        return plain(*values)

    return run


def noisy_input_hand(site, plain):
    return lambda *values: (1.3 * plain(*values) + 0.4) if site == "input" else plain(*values)


def rounded(x, bits, low, high, top):
    """The nearest of the codes from `low` to `high` in units of a step, zero among them."""
    step = (high - low) / (2**bits - 1)
    step = jnp.where(step > 0, step, 1)
    zero = jnp.round(low / step)
    return jnp.clip(jnp.round(x / step), zero, zero + top) * step


def through(value, function):
    """Rounding: straight through to derivatives, and variances are kept."""
    return moved(value, lambda a: a + jax.lax.stop_gradient(function(a) - a))


def quantized_hand(site, plain):
    def codes(a, axis):
        low, high = (end(a, axis, keepdims=True, initial=0.0) for end in (jnp.min, jnp.max))
        return rounded(a, 4, low, high, 15)

    def run(x, *rest):
        if site not in ("fc1", "fc2"):
            return plain(x, *rest)
        kernel, bias = rest
        return plain(
            through(x, lambda a: codes(a, -1)), through(kernel, lambda a: codes(a, 0)), bias
        )

    return run


def rounded_moments(value, axis):
    """Moments of what is random and rounded to four bits, by the probability of every code."""
    mean, var = value
    low, high = (end(mean, axis, keepdims=True, initial=0.0) for end in (jnp.min, jnp.max))
    step = (high - low) / 15
    noise = jnp.sqrt(var) / step
    levels = (jnp.round(low / step) + jnp.arange(16.0).reshape(-1, 1, 1)) * step
    exact, spread = at_levels(value, levels)
    # Noise of more than a step moves the range as well, so that nothing is clipped.
    return straight_through(
        value,
        (jnp.where(noise > 1, mean, exact), jnp.where(noise > 1, var + step**2 / 12, spread)),
    )


def at_levels(value, levels):
    """Mean and variance of the nearest level to a Gaussian value."""
    mean, var = value
    edges = (levels[1:] + levels[:-1]) / 2
    below = jax.scipy.stats.norm.cdf((edges - mean) / jnp.sqrt(var))
    ends = jnp.zeros_like(below[:1]), jnp.ones_like(below[:1])
    each = jnp.diff(jnp.concatenate([ends[0], below, ends[1]]), axis=0)
    exact = (each * levels).sum(0)
    return exact, (each * (levels - exact) ** 2).sum(0)


def straight_through(value, moments):
    """For derivatives moments stay what they were."""
    return tuple(a + jax.lax.stop_gradient(b - a) for a, b in zip(value, moments, strict=True))


def quantized_integrated(site, plain):
    """The same inside of moments, where draws are rounded."""
    certain = quantized_hand(site, lambda *values: values)

    def run(x, *rest):
        if site not in ("fc1", "fc2"):
            return plain(x, *rest)
        of_certain = certain(x, *rest)
        data, kernel = (
            rounded_moments(value, axis) if isinstance(value, tuple) else of_certain[i]
            for i, (value, axis) in enumerate([(x, -1), (rest[0], 0)])
        )
        return plain(data, kernel, rest[1])

    return run


def integer_hand(site, plain):
    def symmetric(w):
        step = jnp.abs(w).max(0, keepdims=True) / 15
        step = jnp.where(step > 0, step, 1)
        return jnp.round(w / step) * step

    def run(x, *rest):
        if site not in ("fc1", "fc2"):
            return plain(x, *rest)
        kernel, bias = rest
        return plain(rounded(x, 5, -1.0, 2.1, 31), symmetric(kernel), bias)

    return run


def photonic_hand(site, plain):
    def levels(a):
        return jnp.round(jnp.clip(a, 0, 6.8) * (15 / 6.8)) / (15 / 6.8)

    return lambda *values: plain(through(values[0], levels)) if site == "mean" else plain(*values)


def photonic_integrated(site, plain):
    """The same inside of moments, where light's ReLU is one more to integrate."""

    def read(value):
        value = relu(value)
        levels = jnp.arange(16.0).reshape(-1, *[1] * mean_of(value).ndim) * (6.8 / 15)
        return plain(straight_through(value, at_levels(value, levels)))

    return lambda *values: read(values[0]) if site == "mean" else plain(*values)


def lora_hand(site, plain):
    def run(x, *rest):
        y = plain(x, *rest)
        if site != "fc1":
            return y
        a, b = (FACTORS["fc1/kernel"][name][0] for name in ("a", "b"))
        update = 0.5 * mean_of(x) @ a @ b
        if mean_of(y).shape[-1] == 4:  # as the weights' channels went
            update = update[:, np.repeat(LEFT, 2)]
        return (y[0] + update, y[1]) if isinstance(y, tuple) else y + update

    return run


def analog_hand(site, plain):
    def run(x, *rest):
        if site != "fc2":
            return plain(x, *rest)
        kernel, bias = rest
        inputs = jnp.clip(jnp.round(mean_of(x) / 0.3), -31, 31) * 0.3
        weights = jnp.clip(jnp.round(mean_of(kernel) / 0.35), -63, 63) * 0.35
        y = inputs @ weights + mean_of(bias)
        return (y, plain(x, *rest)[1]) if isinstance(kernel, tuple) else y

    return run


def scaled(value, factors):
    return moved(value, lambda a: a * factors, factors)


def gated_hand(site, plain):
    def run(x, *rest):
        if site == "fc2":
            gates = GATES if mean_of(x).shape[-1] == 3 else [GATES[i] for i in (0, 2)]
            x = scaled(x, jnp.array(gates))
        return plain(x, *rest)

    return run


def of_parameters(change):
    """The network of changed parameters; `change` takes arrays by module and name."""

    def whole(f):
        def g(params, x):
            of = lambda m, n: jax.tree.map(lambda a: change(m, n, a), params[m][n])  # noqa: E731
            return f({m: {n: of(m, n) for n in params[m]} for m in params}, x)

        return g

    return whole


@of_parameters
def masked_whole(module, name, a):
    if (module, name) == ("fc2", "bias"):
        return a
    whole = a.shape[-1 if module == "fc1" else -2] in (3, 6)
    pairs = np.array(
        KEPT if whole else [kept for kept, left in zip(KEPT, LEFT, strict=True) if left]
    )
    return a * (np.repeat(pairs, 2) if module == "fc1" else pairs[:, None])


@of_parameters
def pruned_whole(module, name, a):
    if module == "fc1":
        return a[..., np.flatnonzero(np.repeat(LEFT, 2))]
    return a[..., np.flatnonzero(LEFT), :] if name == "kernel" else a


# The transforms ----------------------------------------------------------------------------------


def unchanged(f):
    return f


@dataclass(frozen=True)
class Case:
    """A transform, and what it does by hand.

    `apply` makes the function, of the inner one and of the inner one's arguments. `hand` acts on
    layers (`integrated` where moments are taken around it; `innermost` if it takes the place of the
    layer's product), `whole` on the network as a function of parameters and data. `params` are the
    parameters that the function takes, of those that the inner one takes.
    """

    apply: Callable[..., Any]
    hand: Hand | None = None
    integrated: Hand | None = None
    innermost: bool = False
    whole: Callable[..., Any] = unchanged
    keyed: bool = False
    params: Callable[[Any], Any] = lambda params: params


LEFT, KEPT, GATES = [True, False, True], [True, True, False], [0.5, 1.4, 0.3]
GROUPS = jaxeff.channels(network, PARAMS, X)
REMOVED, ZEROED, WEIGHED = (
    Plan({"fc1/kernel:1": jnp.array(channels)}, GROUPS) for channels in (LEFT, KEPT, GATES)
)
LIGHT = ChaoticLight(
    noise=0.0, cap=3.4, slots=2, bits=4, modes=1e12, photons=1e12, electronic=0.0
)  # fmt: skip
ARRAY = Crossbar(
    rows=2, columns=8, output_bits=24, gain=1.0, input_step=0.3, weight_step=0.35, signed=True,
    model=Linear(0.0),
)  # fmt: skip
LOW_RANK = {"fc1": jaxeff.LoRA(2, alpha=1.0)}
FACTORS = {
    "fc1/kernel": {
        "a": 0.3 * jax.random.normal(jax.random.key(4), (1, 4, 2)),
        "b": jax.random.normal(jax.random.key(5), (1, 2, 6)),
    }
}
NOISE = {"relu": Known(), "fc1": KnownAtWeights(), "fc2": KnownAtInput()}
CODES = {"*:linear": Int(5, range=(-1.0, 2.1))}


def gaussian(params):
    """Random parameters."""
    is_random = lambda v: isinstance(v, jaxeff.Gaussian)  # noqa: E731
    return jax.tree.map(
        lambda w: w if is_random(w) else jaxeff.Gaussian(w, 0.02 + 0.05 * w**2),
        params, is_leaf=is_random,
    )  # fmt: skip


def first_order(f):
    """The function at the means, and variances by its slopes there."""

    def g(params, x):
        is_random = lambda v: isinstance(v, tuple)  # noqa: E731  # a mean and a variance
        leaves, structure = jax.tree.flatten(params, is_leaf=is_random)
        means, variances = zip(*leaves, strict=True)

        def result(at):
            return f(jax.tree.unflatten(structure, at), x)

        slopes = jax.jacobian(result)(means)
        parts = [
            (s**2 * v).sum(tuple(range(s.ndim - v.ndim, s.ndim)))
            for s, v in zip(slopes, variances, strict=True)
        ]
        return result(means), sum(parts)

    return g


def members(params):
    """Parameters of the members of an ensemble."""
    return jax.tree.map(lambda w: jnp.stack([w, 0.7 * w + 0.1]), params)


def each_member(f):
    def g(params, x):
        made = [f(jax.tree.map(lambda w, i=i: w[i], params), x) for i in range(MEMBERS)]
        return jax.tree.map(lambda *of: jnp.stack(of), *made)

    return g


def ensemble(f, *arguments):
    one = jax.tree.map(lambda w: w[0], arguments[-2])
    return jaxeff.ensemble(KEY, f, one, {"*": Members(MEMBERS, spread=0.0)})[0]


CASES = {
    "noisy": Case(lambda f, *_: jaxeff.noisy(f, NOISE), noisy_hand, keyed=True),
    "noisy input": Case(
        lambda f, *_: jaxeff.noisy(f, {"input": Known()}), noisy_input_hand, keyed=True
    ),
    "quantized": Case(
        lambda f, *_: jaxeff.quantized(f, {"*:linear": Int(4, symmetric=False)}),
        quantized_hand,
        integrated=quantized_integrated,
    ),
    "moments": Case(lambda f, *_: jaxeff.moments(f, method="diagonal"), params=gaussian),
    "linear": Case(
        lambda f, *_: jaxeff.moments(f, method="linear"), whole=first_order, params=gaussian
    ),
    "photonic": Case(
        lambda f, *_: jaxeff.photonic(f, {"mean": LIGHT}),
        photonic_hand,
        photonic_integrated,
        keyed=True,
    ),
    "analog": Case(
        lambda f, *_: jaxeff.analog(f, {"fc2": ARRAY}), analog_hand, innermost=True, keyed=True
    ),
    "pruned": Case(
        lambda f, *_: lambda *a: jaxeff.pruned(f, REMOVED)(*a[:-2], REMOVED.shrink(a[-2]), a[-1]),
        whole=pruned_whole,
    ),
    "masked": Case(lambda f, *_: jaxeff.masked(f, ZEROED), whole=masked_whole),
    "gated": Case(lambda f, *_: jaxeff.masked(f, WEIGHED), gated_hand),
    "lora": Case(
        lambda f, *_: lambda *a: jaxeff.lora(f, LOW_RANK)(*a[:-1], FACTORS, a[-1]), lora_hand
    ),
    "ensemble": Case(ensemble, whole=each_member, params=members),
    "integer": Case(lambda f, *_: jaxeff.integer(f, CODES), integer_hand),
}

# What can't be right is refused, and the error names both, or the site, and the way out.
REFUSED: dict[tuple[str, str], str] = {
    **{(outer, "integer"): r"can't act on integer.*quantized\(f, spec\)" for outer in CASES},
    **{
        (outer, "linear"): r"can't act on moments\(f\) by the linear.*Take moments"
        for outer in CASES
    },
    **{
        pair: r"can't act on moments\(f\).*Take moments once"
        for pair in itertools.product(("moments", "linear"), repeat=2)
    },
    **{(outer, "analog"): r"'fc2', which analog reads" for outer in ("moments", "linear")},
    **{(outer, "analog"): r"analog has cut.*analog\(quanti" for outer in ("quantized", "integer")},
    ("analog", "analog"): "which analog reads out already; leave it out",
    ("pruned", "analog"): "act on analog.*'fc2'.*take pruned",
    ("pruned", "pruned"): "take pruned",
    ("lora", "moments"): r"can't act on moments\(f\) at 'fc1'.*Take moments\(lora",
    ("lora", "pruned"): "'fc1', whose weight is a part of fc1/kernel",
    ("lora", "ensemble"): "adapter of 'fc1' must have shapes.*made for another function",
    # A plan belongs to the function that it was made of.
    **{(outer, "ensemble"): "plan is of a model" for outer in ("pruned", "masked", "gated")},
    **{("gated", inner): "make the plan of this one" for inner in ("pruned", "analog")},
    ("integer", "moments"): r"can't act on moments\(f\).*Take moments\(quantized",
}
# These leave every layer as it is: parameters are set to zero, or have members.
for unharmed in (("masked", "integer"), ("ensemble", "integer")):
    del REFUSED[unharmed]
for unharmed in (("masked", "linear"), ("ensemble", "linear")):
    del REFUSED[unharmed]


def composed(outer: Case, inner: Case):
    """The pair as a function, and its arguments."""
    arguments = (inner.params(PARAMS), X)
    first = inner.apply(network, *arguments)
    if inner.keyed:
        arguments = (KEY, *arguments)
    second = outer.apply(first, *arguments)
    *keys, params, x = arguments
    arguments = (*keys, outer.params(params), x)
    return second, ((KEY, *arguments) if outer.keyed else arguments)


def expected(cases: Sequence[Case], params):
    """The same of transforms by hand, the inner one first."""
    # A crossbar takes the place of the product itself, whatever is around it.
    hands = [case.hand for case in cases if case.innermost]
    for i, case in enumerate(cases):
        if case.innermost:
            continue
        inside = any(
            outer.params is gaussian and outer.whole is unchanged for outer in cases[i + 1 :]
        )
        hands.append(case.integrated if inside and case.integrated else case.hand)
    f = lambda params, x: by_hand([hand for hand in hands if hand], params, x)  # noqa: E731
    for case in cases:
        f = case.whole(f)
    return f(params, X)


def as_pairs(tree):
    """Every Gaussian as a pair."""
    is_random = lambda v: isinstance(v, jaxeff.Gaussian)  # noqa: E731
    pair = lambda v: (v.mean, v.var) if is_random(v) else v  # noqa: E731
    return jax.tree.map(pair, tree, is_leaf=is_random)


def distance(a, b):
    if jax.tree.structure(a) != jax.tree.structure(b):
        return np.inf
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return max(np.inf if u.shape != v.shape else float(np.abs(u - v).max()) for u, v in pairs)


def evaluated(outer: Case, inner: Case):
    """What the pair gives, what it has to give, and what it would without either transform."""
    g, arguments = composed(outer, inner)
    params = as_pairs(arguments[-2])

    def without(case):
        # Moments are no change of the network, and members no network's own parameters.
        same = case.params is members or (case.params is gaussian and case.whole is unchanged)
        return [] if same else [expected([inner if case is outer else outer], params)]

    @jax.jit
    def everything(arguments, params):
        found = as_pairs(g(*arguments))  # a refusal comes before anything by hand
        others = [] if outer is inner else [*without(outer), *without(inner)]
        return found, expected([inner, outer], params), others

    return everything(arguments, params)


@pytest.mark.slow
@pytest.mark.parametrize(("outer", "inner"), list(itertools.product(CASES, repeat=2)))
@pytest.mark.filterwarnings("ignore::jaxeff.compression.integers._rule.IntegerFallbackWarning")
def test_a_pair_is_right_or_refused(outer, inner):
    if message := REFUSED.get((outer, inner)):
        with pytest.raises((ValueError, NotImplementedError), match=f"(?s){message}"):
            evaluated(CASES[outer], CASES[inner])
        return
    output, wanted, others = evaluated(CASES[outer], CASES[inner])
    assert distance(output, wanted) < 1e-4
    assert all(distance(other, wanted) > 3e-3 for other in others)


@pytest.mark.slow
def test_moments_by_hand_are_those_of_samples():
    # In two layers of which the first is random alone, moment matching is exact: the standard error
    # of a mean is sqrt(v / n), of a variance below 2 v sqrt(2 / n).
    count = 20_000
    leaves, structure = jax.tree.flatten(PARAMS)
    keys = jax.tree.unflatten(structure, list(jax.random.split(KEY, len(leaves))))

    def draw(key, w):
        return w + jnp.sqrt(0.02 + 0.05 * w**2) * jax.random.normal(key, (count, *w.shape))

    samples = jax.tree.map(draw, keys, PARAMS)
    for names in ((), ("noisy",), ("gated",), ("masked",)):
        cases = [CASES[name] for name in names]
        mean, var = expected([*cases, CASES["moments"]], as_pairs(gaussian(PARAMS)))
        drawn = jax.jit(jax.vmap(lambda params, c=cases: expected(c, params)))(samples)
        assert (np.abs(drawn.mean(0) - mean) < 5 * np.sqrt(var / count)).all()
        assert (np.abs(drawn.var(0) - var) < 5 * 2 * var * np.sqrt(2 / count)).all()


def test_masks_of_converted_parameters_are_refused():
    codes = jaxeff.integer(network, CODES).convert(PARAMS, X)
    with pytest.raises(PlanError, match=r"have no fc1/kernel.*before `convert`"):
        jaxeff.masked(jaxeff.integer(network, CODES), ZEROED)(codes, X)


def test_every_transform_has_a_case():
    # A transform takes a function first and returns one.
    found = {
        name
        for name in jaxeff.__all__
        if callable(made := getattr(jaxeff, name))
        and not isinstance(made, type)
        and next(iter(inspect.signature(made).parameters)) == "f"
        and "Callable" in str(inspect.signature(made).return_annotation)
    }
    assert found <= set(CASES)
    assert {name for name in TRANSFORMS} <= set(CASES)
