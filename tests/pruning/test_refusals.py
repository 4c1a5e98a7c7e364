"""What can't be pruned: one error that names the primitive, the site and the way out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff.pruning import Plan, PlanError, Prune, channels, masked, prune_plan, pruned

X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)


def model(between, width=24, out=None):
    """Two layers and something between them."""

    def f(p, x):
        y = between(jnp.tanh(x @ p["first"]["kernel"]))
        return y.reshape(x.shape[0], -1) @ p["last"]["kernel"]

    shape = (width, width if out is None else out)
    params = {
        "first": {"kernel": np.ones((3, width), np.float32)},
        "last": {"kernel": np.ones((shape[1], 2), np.float32)},
    }
    return f, params


def blocks(y):
    """Six blocks of four, one of whose channels then moves on its own."""
    return y.reshape(2, 4, 6).swapaxes(1, 2).reshape(2, 4, 6)


CASES = {
    "a reshape that can't stay rectangular": (
        model(blocks),
        ["reshape at 'reshape_1' (it doesn't stay rectangular)", "blocks of equal size"],
    ),
    "heads that don't divide": (
        model(lambda y: y.reshape(2, 3, 8).swapaxes(1, 2).reshape(2, 24)[:, :10], out=10),
        ["slice at 'slice' (it cuts between the channels of a block)", "boundary between blocks"],
    ),
    "an unknown primitive": (
        model(lambda y: jax.pure_callback(np.tanh, y, y)),
        ["pure_callback at 'pure_callback' (no rule says which channels", "keep channels apart"],
    ),
    "a transform of channels": (
        model(lambda y: jnp.fft.rfft(y).real, out=13),
        ["fft at 'fft'", "channels stay apart"],
    ),
    "an order": (model(lambda y: jnp.sort(y)), ["sort at 'sort'", "channels stay apart"]),
    "a closed-over size": (
        model(lambda y: y * jnp.arange(24.0)[None]),
        ["iota at '", "channels stay apart"],
    ),
    "closed-over indices": (
        model(lambda y: y[:, np.array([3, 1, 2])], out=3),
        ["gather at 'gather'", "channels stay apart"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_holds_channels_is_named(name):
    (f, params), said = CASES[name]
    coupled = channels(f, params, X)
    group = next(g for g in coupled if g.name.startswith("first/kernel:1"))
    assert not group.free
    keep = {group.name: np.arange(group.size) > 0}
    with pytest.raises(ValueError, match="can't lose channels") as spec:
        prune_plan(f, params, X, {"first": Prune(0.5)})
    with pytest.raises(PlanError) as cut:
        pruned(f, Plan(keep, coupled))
    with pytest.raises(PlanError) as shrunk:
        Plan(keep, coupled).shrink(params)
    for error in (spec, cut, shrunk):
        text = str(error.value)
        assert "first/kernel:1" in text
        assert all(part in text for part in said), text


def test_inputs_and_results_keep_their_channels():
    f, params = model(lambda y: y)
    coupled = channels(f, params, X)
    for name, why, way in (
        ("first/kernel:0", "an input of the function", "prune the next layer"),
        ("last/kernel:1", "a result of the function", "prune the layers before it"),
    ):
        keep = np.arange(coupled[name].size) > 0
        with pytest.raises(PlanError, match=f"'{name}' can't lose channels: {why}.*{way}"):
            pruned(f, Plan({name: keep}, coupled))


def test_a_loop_keeps_its_layers():
    def f(p, x):
        return jax.lax.scan(lambda y, w: (jnp.tanh(y @ w), None), x, p["layers"])[0]

    params = {"layers": np.ones((4, 3, 3), np.float32)}
    coupled = channels(f, params, X)
    with pytest.raises(PlanError, match=r"scan at 'scan' \(the axis that it runs along\).*Unroll"):
        pruned(f, Plan({"layers:0": np.arange(4) > 0}, coupled))


def test_symbolic_sizes_are_refused():
    f, params = model(lambda y: y)
    plan = Plan({"first/kernel:1": np.arange(24) < 5}, channels(f, params, X))
    (batch,) = jax.export.symbolic_shape("batch")
    x = jax.ShapeDtypeStruct((batch, 3), jnp.float32)
    with pytest.raises(PlanError, match=r"symbolic shape \('batch', '3'\).*known sizes"):
        channels(f, params, x)
    with pytest.raises(PlanError, match="symbolic shape"):
        jax.eval_shape(pruned(f, plan), plan.shrink(params), x)


def test_parameters_that_are_not_shrunk_are_refused():
    f, params = model(lambda y: y)
    plan = Plan({"first/kernel:1": np.arange(24) < 5}, channels(f, params, X))
    small = plan.shrink(params)
    with pytest.raises(
        PlanError, match=r"first/kernel has shape \(3, 24\).*plan\.shrink\(params\)"
    ):
        pruned(f, plan)({**small, "first": params["first"]}, X)
    with pytest.raises(PlanError, match="has shape"):
        plan.shrink(small)


def test_an_unknown_primitive_between_other_channels_holds_only_its_own():
    def f(p, x):
        y = jnp.tanh(x @ p["a"]) @ p["b"]
        return jnp.fft.rfft(y).real @ p["c"]

    params = {"a": np.ones((3, 9)), "b": np.ones((9, 8)), "c": np.ones((5, 2))}
    params = jax.tree.map(np.float32, params)
    coupled = channels(f, params, X)
    assert [group.name for group in coupled.free] == ["a:1"]
    assert "fft at 'fft'" in coupled["b:1"].refusal


def test_what_does_not_come_out_as_its_rule_says_is_named(monkeypatch):
    from jaxeff.core import primitives
    from jaxeff.pruning.dependencies import _dimensions as dimensions
    from jaxeff.pruning.dependencies import _rules as rules

    f, params = model(lambda y: jnp.cumsum(y, 1))
    monkeypatch.setitem(rules.RULES, primitives.cumsum_p, lambda eqn, axes, _: axes)
    monkeypatch.setitem(
        rules.RULES, primitives.tanh_p, lambda eqn, axes, _: [(axes[0][0], dimensions.fresh(24))]
    )
    coupled = channels(f, params, X)
    plan = Plan({"first/kernel:1": np.arange(24) < 5}, coupled)
    with pytest.raises(PlanError, match="tanh at 'tanh' can't be restated for fewer channels"):
        pruned(f, plan)(plan.shrink(params), X)


def bent(backward):
    """A function with a derivative of its own."""

    @jax.custom_vjp
    def h(x, scale):
        return jnp.tanh(x * scale)

    h.defvjp(lambda x, scale: (jnp.tanh(x * scale), (x, scale)), backward)
    return h


@pytest.mark.promotes("rank")
def test_a_derivative_of_its_own_shrinks_too():
    def backward(kept, g):
        x, scale = kept
        return g * scale * jnp.ones((2, 8)), (g * x).sum(0)  # a size that is closed over

    h = bent(backward)

    def f(p, x):
        return h(x @ p["a"], p["s"]) @ p["b"]

    rng = np.random.default_rng(0)
    params = {"a": rng.normal(size=(3, 8)), "s": rng.normal(size=8), "b": rng.normal(size=(8, 2))}
    params = jax.tree.map(np.float32, params)
    keep = np.arange(8) % 3 > 0
    plan = Plan({"a:1": keep}, channels(f, params, X))
    small = plan.shrink(params)
    narrow = {"a": params["a"][:, keep], "s": params["s"][keep], "b": params["b"][keep]}
    ours = jax.grad(lambda p: pruned(f, plan)(p, X).sum())(small)

    def expected(kept, g):
        x, scale = kept
        return g * scale, (g * x).sum(0)

    other = bent(expected)
    theirs = jax.grad(lambda p: (other(X @ p["a"], p["s"]) @ p["b"]).sum())(narrow)
    for name, gradient in ours.items():
        np.testing.assert_allclose(gradient, theirs[name], rtol=1e-5, atol=1e-6)


def test_a_derivative_that_needs_all_channels_holds_them():
    h = bent(lambda kept, g: (jnp.cumsum(g, 1), g.sum(0, keepdims=True)))

    def f(p, x):
        return h(x @ p["a"], p["s"][None]) @ p["b"]

    params = {"a": np.ones((3, 8)), "s": np.ones(8), "b": np.ones((8, 2))}
    coupled = channels(f, jax.tree.map(np.float32, params), X)
    assert not coupled.free
    assert "cumsum" in coupled["a:1"].refusal


def test_routing_holds_the_routes_and_nothing_else():
    def f(p, x):
        y = jnp.tanh(x @ p["in"])
        best, which = jax.lax.top_k(y @ p["router"], 2)
        routes = (jax.nn.one_hot(which, 4) * best[..., None]).sum(1)
        experts = jnp.einsum("bc,ecd->bed", y, p["up"])
        return jnp.einsum("be,bed,edo->bo", routes, experts, p["down"])

    shapes = {"in": (3, 6), "router": (6, 4), "up": (4, 6, 5), "down": (4, 5, 2)}
    rng = np.random.default_rng(0)
    params = {k: rng.standard_normal(s, dtype=np.float32) for k, s in shapes.items()}
    coupled = channels(f, params, X)
    assert {group.name for group in coupled.free} == {"in:1", "up:2"}
    assert "top_k" in coupled["router:1"].refusal
    plan = Plan({"in:1": np.arange(6) != 2, "up:2": np.arange(5) > 1}, coupled)
    ours = pruned(f, plan)(plan.shrink(params), X)
    np.testing.assert_allclose(ours, masked(f, plan)(params, X), rtol=1e-5, atol=1e-6)
