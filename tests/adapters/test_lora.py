"""Adapters beside layers: as merged ones, around rounded weights, in other transforms."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx

import jaxeff
from jaxeff.adapters import LoRA, frozen, init_lora, lora, merge_lora
from jaxeff.bayes import svi
from jaxeff.compression import Int, quantized
from jaxeff.nn import MLP, SmallCNN, TransformerEncoder
from jaxeff.program import SpecError
from jaxeff.training import cross_entropy, fit

KEY = jax.random.key(0)


class Grouped(nnx.Module):
    """A strided convolution with groups, and a dense layer."""

    def __init__(self, rngs):
        self.conv = nnx.Conv(4, 6, (3, 3), strides=2, feature_group_count=2, rngs=rngs)
        self.fc = nnx.Linear(6, 3, rngs=rngs)

    def __call__(self, x):
        return self.fc(nnx.relu(self.conv(x)).mean((1, 2)))


def build(name):
    rngs = nnx.Rngs(0)
    model, shape = {
        "dense": (lambda: MLP((6, 12, 5), rngs=rngs), (7, 6)),
        "attention": (
            lambda: TransformerEncoder(5, 4, 6, width=8, heads=2, hidden=12, depth=1, rngs=rngs),
            (3, 6, 4),
        ),
        "convolution": (lambda: SmallCNN(rngs=rngs), (2, 28, 28, 1)),
        "groups": (lambda: Grouped(rngs), (2, 9, 9, 4)),
    }[name]
    f, params = jaxeff.functional(model())
    return f, params, jax.random.normal(jax.random.key(1), shape)


def spread(adapters):
    """Adapters with an update: `b` isn't zero."""
    return jax.tree.map(
        lambda leaf: leaf + 0.1 * jax.random.normal(jax.random.key(2), leaf.shape), adapters
    )


F, PARAMS, X = build("dense")
SPEC = {"*:linear": LoRA(2, alpha=3.0)}
G = lora(F, SPEC)
ADAPTERS = spread(init_lora(KEY, F, PARAMS, X, SPEC))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dense", "attention", "convolution", "groups"])
def test_a_start_changes_nothing_and_merging_keeps_what_was_added(name):
    f, params, x = build(name)
    g = jax.jit(lora(f, SPEC))
    start = init_lora(KEY, f, params, x, SPEC)
    np.testing.assert_array_equal(g(params, start, x), jax.jit(f)(params, x))
    adapters = spread(start)
    apart = g(params, adapters, x)
    assert np.abs(apart - f(params, x)).max() > 1e-2
    merged = merge_lora(f, params, adapters, x, SPEC)
    assert jax.tree.structure(merged) == jax.tree.structure(params)
    np.testing.assert_allclose(f(merged, x), apart, rtol=1e-4, atol=1e-4)


def test_a_layer_is_its_formula():
    weights = np.asarray(PARAMS["fc1"]["kernel"], np.float64)
    a, b = (np.asarray(ADAPTERS["fc1/kernel"][name][0], np.float64) for name in ("a", "b"))
    assert a.shape == (6, 2)
    assert b.shape == (2, 12)
    hidden = np.asarray(X) @ (weights + 3 / 2 * a @ b) + np.asarray(PARAMS["fc1"]["bias"])
    only = {"fc1": LoRA(2, alpha=3.0)}
    found = lora(F, only)(PARAMS, {"fc1/kernel": ADAPTERS["fc1/kernel"]}, X)
    expected = np.maximum(hidden, 0) @ np.asarray(PARAMS["fc2"]["kernel"])
    np.testing.assert_allclose(found, expected + np.asarray(PARAMS["fc2"]["bias"]), rtol=1e-4,
                               atol=1e-5)  # fmt: skip


def test_a_convolution_has_no_patches():
    # Their size is that of the image times the kernel's taps.
    f, params, x = build("groups")
    spec = {"conv": LoRA(2)}
    adapters = init_lora(KEY, f, params, x, spec)
    jaxpr = jax.make_jaxpr(lora(f, spec))(params, adapters, x)
    assert max(v.aval.size for eqn in jaxpr.eqns for v in eqn.outvars) <= x.size


@pytest.mark.slow
def test_globs_choose_the_layers():
    f, params, x = build("attention")
    found = init_lora(KEY, f, params, x, {"*attn*": LoRA(2), "*attn/value": None})
    names = ("key", "out", "query")
    assert sorted(found) == [f"blocks/0/attn/{name}/kernel" for name in names]
    with pytest.raises(SpecError, match="nothing"):
        init_lora(KEY, f, params, x, {"nothing*": LoRA(2)})
    with pytest.raises(ValueError, match="nothing for an adapter"):
        init_lora(KEY, F, PARAMS, X, {"relu": LoRA(2)})


def test_linen_has_the_same_adapters():
    class Net(linen.Module):
        @linen.compact
        def __call__(self, x):
            return linen.Dense(5, name="fc2")(linen.relu(linen.Dense(12, name="fc1")(x)))

    f, _ = jaxeff.functional(Net(), Net().init(KEY, X))
    np.testing.assert_allclose(
        lora(f, SPEC)(PARAMS, ADAPTERS, X), G(PARAMS, ADAPTERS, X), rtol=1e-5, atol=1e-5
    )


@pytest.mark.slow
def test_rounded_weights_keep_an_update_that_is_not():
    rounding = {"*:linear": Int(4, activations=False, symmetric=False)}
    rounded = quantized(F, rounding)
    found = lora(rounded, SPEC)(PARAMS, ADAPTERS, X)
    np.testing.assert_array_equal(
        lora(rounded, SPEC)(PARAMS, init_lora(KEY, rounded, PARAMS, X, SPEC), X),
        rounded(PARAMS, X),
    )

    def on_grid(w):
        low, high = (end(w, axis=0, keepdims=True) for end in (jnp.min, jnp.max))
        step = (jnp.maximum(high, 0) - jnp.minimum(low, 0)) / 15
        zero = jnp.round(jnp.minimum(low, 0) / step)
        return jnp.clip(jnp.round(w / step), zero, zero + 15) * step

    by_hand = {
        name: own | {"kernel": on_grid(own["kernel"])
                     + 1.5 * (ADAPTERS[f"{name}/kernel"]["a"] @ ADAPTERS[f"{name}/kernel"]["b"])[0]}
        for name, own in PARAMS.items()
    }  # fmt: skip
    np.testing.assert_allclose(found, F(by_hand, X), rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match="can't be merged"):
        merge_lora(rounded, PARAMS, ADAPTERS, X, SPEC)


@pytest.mark.slow
def test_only_adapters_are_trained():
    y = jnp.arange(7) % 5
    trained = fit(
        KEY, cross_entropy(lambda adapters, x: G(PARAMS, adapters, x)), ADAPTERS, (X, y),
        optimizer=optax.sgd(0.1), epochs=20, batch_size=7, progress=False,
    )  # fmt: skip
    assert trained.history[-1]["loss"] < trained.history[0]["loss"]
    assert jax.tree.structure(trained.params) == jax.tree.structure(ADAPTERS)
    slopes = jax.grad(lambda a: G(PARAMS, a, X).sum())(ADAPTERS)
    merged = jax.grad(lambda a: F(merge_lora(F, PARAMS, a, X, SPEC), X).sum())(ADAPTERS)
    for ours, expected in zip(jax.tree.leaves(slopes), jax.tree.leaves(merged), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.promotes("dtype", "rank")  # NumPyro
def test_frozen_weights_may_be_parameters():
    """Training equals that of a function that closes over them, and they stay as they are."""
    y = jnp.arange(7) % 5
    together = {"frozen": PARAMS, "adapters": ADAPTERS}
    g = lambda p, x: G(p["frozen"], p["adapters"], x)  # noqa: E731
    run = {"epochs": 3, "batch_size": 7, "progress": False}
    trained = fit(KEY, cross_entropy(g), together, (X, y),
                optimizer=frozen(optax.adam(0.1), "frozen/*"), **run)  # fmt: skip
    alone = fit(KEY, cross_entropy(lambda a, x: G(PARAMS, a, x)), ADAPTERS, (X, y),
                optimizer=optax.adam(0.1), **run)  # fmt: skip
    jax.tree.map(np.testing.assert_array_equal, trained.params["frozen"], PARAMS)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
        trained.params["adapters"], alone.params,
    )  # fmt: skip
    # Adam keeps two moments of the adapters, and none of what is frozen.
    sizes = sum(leaf.size for leaf in jax.tree.leaves(trained.opt_state))
    assert sizes == 2 * sum(leaf.size for leaf in jax.tree.leaves(ADAPTERS)) + 1
    posterior = svi(
        KEY, g, together, (X, y), prior={"frozen/*": None}, **run,
        optimizer=frozen(optax.adam(0.1), "*frozen/*"),
    ).posterior  # fmt: skip
    jax.tree.map(np.testing.assert_array_equal, posterior["frozen"], PARAMS)
    assert float(posterior["adapters"]["fc1/kernel"]["a"].var.min()) > 0
    for pattern in ("froze/*", "*"):
        with pytest.raises(ValueError, match="must match some of the parameters"):
            frozen(optax.adam(0.1), pattern).init(together)


def test_members_share_the_frozen_product():
    several = jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf, -leaf]), ADAPTERS)
    members = jax.vmap(G, (None, 0, None))
    found = jax.jit(members)(PARAMS, several, X)
    for i in range(3):
        alone = G(PARAMS, jax.tree.map(lambda leaf, i=i: leaf[i], several), X)
        np.testing.assert_allclose(found[i], alone, rtol=1e-4, atol=1e-5)
    # The first layer's product with the frozen kernel has no axis of members.
    products = [
        eqn for eqn in jax.make_jaxpr(members)(PARAMS, several, X).jaxpr.eqns
        if eqn.primitive.name == "dot_general" and eqn.invars[1].aval.shape == (6, 12)
    ]  # fmt: skip
    assert [eqn.outvars[0].aval.shape for eqn in products] == [(7, 12)]


def test_uses_of_a_shared_layer_have_one_adapter():
    def f(params, x):
        return jnp.tanh(x @ params["fc"]["w"]) @ params["fc"]["w"]

    params, spec = {"fc": {"w": jax.random.normal(KEY, (6, 6))}}, {"fc": LoRA(2)}
    adapters = spread(init_lora(KEY, f, params, X, spec))
    assert list(adapters) == ["fc/w"]
    merged = merge_lora(f, params, adapters, X, spec)
    np.testing.assert_allclose(f(merged, X), lora(f, spec)(params, adapters, X), rtol=1e-3,
                               atol=1e-4)  # fmt: skip
    alone = {"fc": LoRA(2), "fc#1": None}
    with pytest.raises(ValueError, match="fc#1 reads fc/w, too"):
        merge_lora(f, params, adapters, X, alone)


TIED = {
    "x W W'": lambda w, x: (x @ w) @ w.T,
    "x W tanh W'": lambda w, x: jnp.tanh(x @ w) @ w.T,
    "x W' W": lambda w, x: jnp.tanh(x @ w.T) @ w,
    "W' first": lambda w, x: jnp.einsum("oi,bi->bo", w, x) @ w,
    "x W W": lambda w, x: (x @ w) @ w,
}  # fmt: skip


@pytest.mark.parametrize("name", TIED)
@pytest.mark.parametrize("transform", ["plain", "rounded"])
def test_factors_lie_as_the_parameter_and_not_as_its_use(name, transform):
    params, spec = {"w": jax.random.normal(KEY, (6, 6))}, {"*": LoRA(2)}

    def f(params, x):
        w = params["w"]
        return TIED[name](0.5 * jnp.round(w / 0.5) if transform == "rounded" else w, x)

    adapters = spread(init_lora(KEY, f, params, X, spec))
    y = jax.jit(lora(f, spec))(params, adapters, X)
    update = 8 * (adapters["w"]["a"] @ adapters["w"]["b"])[0]
    update = update.T if name in ("x W' W", "W' first") else update
    # Beside a rounding the update isn't rounded.
    weight = 0.5 * jnp.round(params["w"] / 0.5) if transform == "rounded" else params["w"]
    np.testing.assert_allclose(y, TIED[name](weight + update, X), rtol=1e-3, atol=1e-2)
    if transform == "plain":
        merged = merge_lora(f, params, adapters, X, spec)
        np.testing.assert_allclose(merged["w"], params["w"] + update, rtol=1e-4, atol=1e-4)


def test_uses_in_forms_without_common_factors_are_refused():
    def flipped(params, x):
        return jnp.tanh(x @ params["w"]) @ params["w"][::-1]

    params = {"w": jax.random.normal(KEY, (6, 6))}
    with pytest.raises(ValueError, match=r"beside 'w': both read w, in forms .* None"):
        init_lora(KEY, flipped, params, X, {"*": LoRA(2)})
    tied = lambda p, x: (x @ p["w"]) @ p["w"].T  # noqa: E731
    spec = {"w": LoRA(2), "w#1": LoRA(2, alpha=4.0)}
    adapters = spread(init_lora(KEY, tied, params, X, spec))
    with pytest.raises(ValueError, match=r"another use of w multiply .* 2.0 and 8.0"):
        merge_lora(tied, params, adapters, X, spec)


@pytest.mark.slow
def test_transposed_and_keyed_functions():
    def f(key, params, x):
        noise = 0.1 * jax.random.normal(key, (7, 5))
        return x @ params["fc"]["w"].T + noise

    params, spec = {"fc": {"w": jax.random.normal(KEY, (5, 6))}}, {"fc": LoRA(2)}
    plain = lambda params, x: f(KEY, params, x)  # noqa: E731
    adapters = spread(init_lora(KEY, plain, params, X, spec))
    merged = merge_lora(plain, params, adapters, X, spec)
    assert merged["fc"]["w"].shape == (5, 6)
    np.testing.assert_allclose(
        lora(f, spec)(KEY, params, adapters, X), f(KEY, merged, X), rtol=1e-4, atol=1e-5
    )


@pytest.mark.slow
def test_loops_over_stacked_parameters_are_refused_and_remat_is_not():
    stacked = {"layers": {"w": jax.random.normal(KEY, (3, 6, 6))}}

    def loop(params, x):
        return jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, params["layers"]["w"])[0]

    with pytest.raises(ValueError, match="is a part of layers/w, as in a loop"):
        init_lora(KEY, loop, stacked, X, {"*:linear": LoRA(2)})
    found = lora(jax.checkpoint(F), SPEC)(PARAMS, ADAPTERS, X)
    np.testing.assert_allclose(found, G(PARAMS, ADAPTERS, X), rtol=1e-5, atol=1e-5)


def test_what_does_not_fit_is_named():
    with pytest.raises(ValueError, match=r"those of \['fc1/kernel', 'fc2/kernel'\], not \['fc1/ke"):
        G(PARAMS, {"fc1/kernel": ADAPTERS["fc1/kernel"]}, X)
    with pytest.raises(ValueError, match="'fc1' must have shapes"):
        lora(F, {"*:linear": LoRA(3)})(PARAMS, ADAPTERS, X)
    with pytest.raises(TypeError, match=r"takes \(params, adapters"):
        G(PARAMS)
    with pytest.raises(ValueError, match=r"Take moments\(lora"):
        lora(jaxeff.moments(F, method="diagonal"), SPEC)(
            jax.tree.map(lambda w: jaxeff.Gaussian(w, w**2), PARAMS), ADAPTERS, X
        )
