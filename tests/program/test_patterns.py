"""The most specific pattern decides, in whatever order patterns are given."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import jaxeff
from jaxeff.noise import Additive
from jaxeff.program import SpecError, Target, deciding_patterns, resolve, select, trace

NAMES = ["conv1", "conv2", "conv10", "fc", "fc#1", "fc#2", "relu", "relu_1", "block/w1", "block/w2"]
KEY = jax.random.key(0)
KINDS = ("linear", "elementwise")
TARGETS = [
    Target(
        name,
        shared="fc" if "#" in name else "",
        kind="elementwise" if "relu" in name else "linear",
    )
    for name in NAMES
]
COLONS = [
    Target("net:0/w", kind="linear"),
    Target("net:linear", kind="elementwise"),
    Target("net:linear#1", shared="net:linear", kind="elementwise"),
    Target("net", kind="linear"),
    Target("a:b:linear", kind="linear"),
]
PATTERNS = st.sampled_from(
    [
        *NAMES, "*", "?*", "conv*", "conv?", "conv[12]", "conv1*", "fc*", "fc#*", "relu*", "relu_?",
        "*w1", "*c*", "block/*", "*:linear", "*:elementwise", "conv*:linear", "fc:linear",
    ]
)  # fmt: skip


def among(*patterns):
    return deciding_patterns(patterns, TARGETS, kinds=KINDS)


@pytest.mark.parametrize(
    ("name", "winner", "loser"),
    [
        ("fc#1", "fc#1", "fc"),  # the site itself over the layer's name
        ("fc#1", "fc#1", "fc#*"),
        ("fc#1", "fc#1", "fc#1*"),  # and over as many literals
        ("fc#1", "fc#*", "fc"),  # literals over a name
        ("fc#1", "fc", "fc*"),  # a name over wildcards
        ("fc", "fc", "fc*:linear"),
        ("conv1", "conv1*", "conv*"),
        ("conv1", "conv*", "*:linear"),  # literals over a kind
        ("conv1", "*:linear", "*"),
        ("conv1", "conv*:linear", "conv*"),
        ("conv1", "conv1:linear", "conv1"),
        ("conv1", "conv*:linear", "conv[12]"),  # a kind over a set
        ("conv1", "conv[12]", "conv?"),
        ("conv1", "conv?", "conv*"),
        ("conv1", "conv[!9]", "conv*"),
        ("block/w1", "block/*", "*w1"),
    ],
)
def test_the_more_specific_pattern_decides(name, winner, loser):
    (target,) = (t for t in TARGETS if t.name == name)
    for patterns in ([winner, loser], [loser, winner]):
        with pytest.raises(SpecError, match="decides no site") as error:
            deciding_patterns(patterns, [target], kinds=KINDS)
        assert f"{loser!r} decides no site" in str(error.value)
        assert f"({winner!r} at {name!r})" in str(error.value)


@settings(deadline=None, max_examples=300)
@given(st.lists(PATTERNS, min_size=1, max_size=6, unique=True), st.randoms())
def test_the_order_of_patterns_says_nothing(patterns, random):
    shuffled = random.sample(patterns, len(patterns))

    def outcome(given):
        try:
            return among(*given)
        except SpecError as error:
            return "equally" in str(error), "decides no" in str(error)

    assert outcome(patterns) == outcome(sorted(patterns)) == outcome(shuffled)


@settings(deadline=None, max_examples=300)
@given(st.lists(PATTERNS, min_size=1, max_size=6, unique=True))
def test_every_pattern_decides_something_and_a_site_is_decided_by_itself(patterns):
    try:
        decided = among(*patterns)
    except SpecError:
        assume(False)
    assert set(decided.values()) == set(patterns)
    for name in NAMES:
        if name in patterns:
            assert decided[name] == name


def test_a_tie_names_both_patterns_and_the_site():
    with pytest.raises(SpecError, match=r"'con\*1'.*'\*onv1'.*equally specific.*site 'conv1'") as e:
        among("con*1", "*onv1")
    assert "conv10:linear" in str(e.value)  # what there is


def test_a_pattern_that_is_always_beaten_is_an_error():
    with pytest.raises(SpecError, match=r"'fc#\[12\]' decides no site.*'fc#1' at 'fc#1'") as e:
        among("fc#[12]", "fc#1", "fc#2")
    assert "The sites are: fc#1:linear, fc#2:linear, conv1:linear" in str(e.value)


def test_close_names_come_first():
    with pytest.raises(
        SpecError,
        match=r"matches no site. The sites are: relu_1:elementwise.* Did you mean 'relu_1'\?",
    ):
        among("rleu_1")


def test_patterns_that_say_the_same_do_not_compete():
    assert select(["conv*", "*onv1", "conv1"], TARGETS) == ["conv1", "conv2", "conv10"]
    with pytest.raises(TypeError, match=r"\['conv\*'\]"):
        select("conv*", TARGETS)


WEIGHTS = {name: jnp.eye(3) for name in ("a1", "a2", "b1", "b2")}
X = jnp.ones((2, 3))


def network(params, x):
    for name in ("a1", "a2", "b1", "b2"):
        x = jnp.tanh(x @ params[name])
    return x


GLOBS = st.sampled_from(
    [
        "*", "a*", "b*", "?1", "a?", "a1", "a2", "b1", "b[12]", "*2", "*:linear", "a*:linear",
        "tanh*", "tanh", "tanh_1", "*:elementwise", "input",
    ]
)  # fmt: skip
SPECS = st.dictionaries(GLOBS, st.sampled_from([None, 0.1, 0.2, 0.4, 0.8]), min_size=1, max_size=5)


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(SPECS, st.randoms())
def test_a_spec_means_the_same_as_an_argument_of_a_jitted_function(levels, random):
    """JAX sorts the keys of a dictionary on its way into `jit`."""
    spec = {p: None if level is None else Additive(level) for p, level in levels.items()}
    try:
        resolve(spec, trace(network, WEIGHTS, X))
    except SpecError:
        assume(False)

    def run(spec):
        return jaxeff.noisy(network, spec)(jax.random.key(0), WEIGHTS, X)

    shuffled = dict(random.sample(list(spec.items()), len(spec)))
    expected = run(spec)
    np.testing.assert_array_equal(run(shuffled), expected)
    np.testing.assert_allclose(jax.jit(run)(spec), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("net:0/w", ["net:0/w"]),
        ("net:0/w:linear", ["net:0/w"]),
        ("net:*", ["net:0/w", "net:linear", "net:linear#1"]),
        ("net:0*:linear", ["net:0/w"]),
        # A name is that name, and that of its later uses, whatever its end reads like.
        ("net:linear", ["net:linear", "net:linear#1"]),
        ("net:linear#1", ["net:linear#1"]),
        ("net:linear:elementwise", ["net:linear", "net:linear#1"]),
        ("a:b:linear", ["a:b:linear"]),
        # A wildcard before a kind is of the kind; a set of one colon is a character.
        ("net*:linear", ["net:0/w", "net"]),
        ("*:linear", ["net:0/w", "net", "a:b:linear"]),
        ("[n]et:linear", ["net"]),
        ("*[:]linear", ["net:linear", "net:linear#1", "a:b:linear"]),
    ],
)
def test_names_may_hold_colons(pattern, names):
    assert select([pattern], COLONS, kinds=KINDS) == names
    # A name says the same beside any other pattern: its layer needs no second spelling.
    both = deciding_patterns({"*": 0, pattern: 1}, COLONS, kinds=KINDS)
    assert [name for name, by in both.items() if by == pattern] == names


@pytest.mark.parametrize("pattern", ["net:liner", "*:w", "fc:linear:"])
def test_a_kind_that_is_none_is_still_refused(pattern):
    with pytest.raises(SpecError, match="there is no kind"):
        select([pattern], COLONS, kinds=KINDS)


def test_parameters_with_colons_are_calibrated_computed_in_codes_and_pruned():
    """What calibrate returns has the sites themselves as patterns."""

    def f(params, x):
        for key in ("layer:0", "net:linear"):
            x = jnp.tanh(x @ params[key])
        return x @ params["net:linear"] @ params["net"]

    rng = np.random.default_rng(0)
    params = {k: jnp.asarray(rng.normal(size=(6, 6)), jnp.float32) / 2
              for k in ("layer:0", "net:linear", "net")}  # fmt: skip
    x = jnp.asarray(rng.normal(size=(5, 6)), jnp.float32)
    setting = jaxeff.Int(8)
    spec = jaxeff.compression.calibrate(f, params, [x], {"*:linear": setting}).spec
    assert list(spec) == ["layer:0", "net:linear", "net:linear#1", "net"]
    g = jaxeff.integer(f, spec)
    output, near = g(g.convert(params, x), x), jaxeff.quantized(f, spec)(params, x)
    np.testing.assert_allclose(output, near, atol=1e-5)
    half = dict.fromkeys(["layer:0", "net:linear", "net:linear#1"], jaxeff.pruning.Prune(0.5))
    plan = jaxeff.prune_plan(f, params, (x,), half)
    small = jaxeff.pruned(f, plan)(plan.shrink(params), x)
    np.testing.assert_allclose(small, jaxeff.pruning.masked(f, plan)(params, x), atol=1e-6)
    noise = {"net:linear": Additive(0.0), "net": None}
    np.testing.assert_array_equal(jaxeff.noisy(f, noise)(KEY, params, x), f(params, x))
