"""A second call with other data of the same shapes compiles nothing, and what is kept goes."""

import gc
import types
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxeff
from jaxeff import core
from jaxeff.bayes import laplace, svi
from jaxeff.compression import Int, calibrate
from jaxeff.nn import small_classifier
from jaxeff.pruning import Plan, channels
from jaxeff.training import cross_entropy, evidential, fit, sweep

F, PARAMS, (X, Y) = small_classifier(32)
OTHER = X[::-1] * 0.5, Y[::-1]
KEYS = jax.random.key(0), jax.random.key(1)


@pytest.fixture
def compiled():
    """The names of what was compiled since it was cleared."""
    events: list[str] = []

    def listen(event, duration_secs, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            events.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield events
    jax.monitoring.unregister_event_duration_listener(listen)


def fitted(key, data, loss=cross_entropy):
    run = {"optimizer": optax.adam(1e-2), "epochs": 1, "batch_size": 16}
    return fit(key, loss(F), PARAMS, data, **run).params


def spread(key, data, **settings):
    return svi(key, F, PARAMS, data, epochs=1, batch_size=16, **settings).posterior


def fitted_to(key, data, sites="fc2", structure="full", **settings):
    return laplace(key, F, PARAMS, data, sites, structure, **settings).probs(data[0])


def measured(_, data, **settings):
    return calibrate(F, PARAMS, data[0], {"*": Int(8)}, **settings).spec


def started(key):
    return jax.tree.map(lambda w: jax.random.normal(key, w.shape), PARAMS), None


def weighted(level):
    def loss(params, batch):
        return level * jaxeff.training.label_loss(F(params, batch[0]), batch[1])

    return loss


def swept(key, data):
    run = {"optimizer": optax.sgd(0.1), "epochs": 1, "batch_size": 16, "seeds": 2}
    return sweep(key, weighted, started, data, jnp.array([0.5, 1.0]), **run).loss


CASES = {
    "sweep": swept,
    "fit": fitted,
    "fit evidence": lambda key, data: fitted(key, data, evidential),
    "svi": spread,
    "svi low rank": lambda key, data: spread(key, data, guide="low_rank", likelihood=of_logits),
    "laplace": fitted_to,
    "laplace of sites": lambda key, data: fitted_to(key, data, "*", "kron"),
    "laplace low rank": lambda key, data: fitted_to(key, data, "*", "lowrank", rank=2),
    "calibrate": measured,
    "calibrate weights": lambda key, data: measured(key, data, method="mse", weights=True),
}


def of_logits(logits):
    import numpyro.distributions as dist

    return dist.Categorical(logits=logits)


QUICK = {"fit", "laplace", "calibrate"}


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=() if c in QUICK else pytest.mark.slow) for c in CASES]
)
def test_second_call_compiles_nothing(case, compiled):
    first = CASES[case](KEYS[0], (X, Y))
    compiled.clear()
    again = CASES[case](KEYS[1], OTHER)
    assert len(compiled) == 0
    leaves = zip(jax.tree.leaves(first), jax.tree.leaves(again), strict=True)
    assert not all(np.array_equal(a, b) for a, b in leaves)


def test_programs_go_with_their_function():
    def scaled(params, batch):
        return ((params["w"] * batch[0]).sum(-1) - batch[1]).mean() ** 2

    def f(params, x):
        return x @ params["w"]

    data = jnp.ones((4, 3)), jnp.zeros(4, jnp.int32)
    run = {"optimizer": optax.sgd(0.1), "epochs": 1, "batch_size": 2}
    gc.collect()  # functions of earlier tests may still lie in cycles, and would go with these
    before = len(core._kept_programs._PROGRAMS)
    fit(KEYS[0], scaled, {"w": jnp.ones(3)}, data, **run)
    fit(KEYS[0], cross_entropy(f), {"w": jnp.ones((3, 2))}, data, **run)
    for structure in ("kron", "diag", "lowrank", "full"):
        laplace(KEYS[0], f, {"w": jnp.eye(3)}, data, "*", structure, rank=2, prior_precision=1.0)
    calibrate(f, {"w": jnp.eye(3)}, data[0], {"*": Int(8)})
    assert len(core._kept_programs._PROGRAMS) >= before + 6
    alive = weakref.ref(scaled), weakref.ref(f)
    del scaled, f
    gc.collect()
    assert [ref() for ref in alive] == [None, None]
    assert len(core._kept_programs._PROGRAMS) == before


def test_what_a_function_reads_is_part_of_it():
    weight = 2.0
    arrays = {"shift": np.ones(2)}

    def f(x):
        return weight * x + arrays["shift"] + SHIFT

    def known():
        return core.kept_program(f).kept

    first = known()
    assert known() is first
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "SHIFT", 1.0)
        assert known() is not first
    assert known() is first
    arrays["shift"][0] = 3.0
    assert known() is not first
    arrays["shift"][0] = 1.0
    weight = -0.0
    other = known()
    weight = 0.0
    assert other is not first
    assert known() is not other


SHIFT = 0.0


def test_what_changes_in_an_object_that_is_called_is_part_of_it():
    class Net:
        def __init__(self):
            self.scale, self.whole = 1.0, self

        def __call__(self, x):
            return self.scale * x

    net = Net()
    first = core.kept_program(net).kept
    assert core.kept_program(net).kept is first
    assert core.kept_program(net.__call__).kept is core.kept_program(net.__call__).kept
    net.scale = 2.0
    assert core.kept_program(net).kept is not first


def test_settings_that_change_in_place_are_part_of_it():
    settings = types.SimpleNamespace(weight=1.0, layers={3, 4}, inner=types.SimpleNamespace(a=1))

    def f(x):
        return settings.weight * x

    kept = [core.kept_program(f).kept]
    assert core.kept_program(f).kept is kept[0]
    settings.weight = 2.0
    kept.append(core.kept_program(f).kept)
    settings.inner.a = 2
    kept.append(core.kept_program(f).kept)
    settings.layers.add(5)
    kept.append(core.kept_program(f).kept)
    assert len(set(map(id, kept))) == 4


def test_closures_that_call_themselves_and_traced_values_are_taken():
    def depth(n):
        return 0 if n == 0 else depth(n - 1)

    assert core.kept_program(depth).kept is core.kept_program(depth).kept

    @jax.jit
    def outer(x):
        g = core.kept_program(lambda y: x * y)
        assert g.kept is not core.kept_program(g.f).kept
        return g(x)

    assert outer(3.0) == 9.0


def test_optimizers_and_transforms_of_the_same_are_the_same():
    def f(params, x):
        return params * x

    made = (
        lambda: optax.adamw(optax.cosine_decay_schedule(1e-2, 10)).update,
        lambda: jax.vmap(jax.grad(f), (None, 0)),
        lambda: cross_entropy(f, keyed=True),
        lambda: jaxeff.training.make_epoch(cross_entropy(f), optax.sgd(0.1), 3),
    )
    programs = [core.kept_program(make()).kept for make in made]
    assert [core.kept_program(make()).kept for make in made] == programs
    assert len(set(programs)) == len(made)
    assert core.kept_program(cross_entropy(f)).kept is not programs[2]


def test_parameters_are_cut_without_compiling(compiled):
    groups = channels(F, PARAMS, X)
    keep = {group.name: np.arange(group.size) != 1 for group in groups.free}
    plan = Plan(keep, groups)
    compiled.clear()
    small = plan.shrink(PARAMS)
    assert not compiled
    pairs = zip(jax.tree_util.tree_leaves_with_path(PARAMS), jax.tree.leaves(small), strict=True)
    for (path, array), leaf in pairs:
        kept = plan.kept[jax.tree_util.keystr(path, simple=True, separator="/")]
        np.testing.assert_array_equal(leaf, np.asarray(array)[np.ix_(*kept)])
        assert leaf.dtype == array.dtype
        assert leaf.committed == array.committed
    assert small["conv1"]["kernel"].size < PARAMS["conv1"]["kernel"].size


def test_a_function_of_a_long_chain_of_objects_is_compiled_each_time():
    """As the layers of a Keras model are, each of which knows those beside it."""
    chain = None
    for scale in range(3000):
        chain = types.SimpleNamespace(scale=scale, before=chain)
    program = core.kept_program(lambda x: x * chain.scale)
    assert float(program(jnp.float32(2))) == 2 * 2999
