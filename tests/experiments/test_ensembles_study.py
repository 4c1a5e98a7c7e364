"""What the study of ensembles trains and judges with."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from experiments.ensembles import bench, methods, sine
from experiments.ensembles.recipe import KINDS, SIZES, Sine
from jaxeff.nn import ACTIVATIONS, MLP
from jaxeff.uncertainty import Decomposition

KEY = jax.random.key(0)


def pool(seeds, few):
    settings = SimpleNamespace(seeds=seeds, few=few)
    return SimpleNamespace(settings=settings, networks=[*range(max(seeds * few, 10))])


@pytest.mark.parametrize(("seeds", "few"), [(5, 5), (2, 2), (3, 4)])
def test_deep_ensembles_share_no_network_and_begin_with_their_seeds(seeds, few):
    own = pool(seeds, few)
    found = [methods.members_of(own, seed, few) for seed in range(seeds)]
    assert [members[0] for members in found] == [*range(seeds)]
    assert len({one for members in found for one in members}) == seeds * few
    many = [methods.members_of(own, seed, 10) for seed in range(seeds)]
    assert all(len(set(members)) == 10 for members in many)


@pytest.mark.parametrize("kind", KINDS)
def test_repulsive_samples_have_the_size_asked_for(kind):
    x = jax.random.normal(KEY, (12, 28, 28, 1))
    images = SimpleNamespace(spare=x + 10, other=x + 20)
    task = SimpleNamespace(images=images, settings=SimpleNamespace(repulsive=5))
    found = methods.samples_of(task, kind)(KEY, x)
    assert found.shape == (5, 28, 28, 1)
    expected = {"ambiguous": 10, "other": 20}.get(kind, 0)
    assert float(found.mean()) == pytest.approx(expected, abs=0.1)
    assert not (np.asarray(found)[:, None] == np.asarray(x)).all((2, 3, 4)).any()


def test_the_strength_is_the_best_that_costs_no_accuracy():
    labels = jnp.arange(100) % 10
    task = SimpleNamespace(images=SimpleNamespace(held_labels=labels))

    def found(right, separation):
        log_probs = jnp.log(jax.nn.one_hot((labels + (jnp.arange(100) >= right)) % 10, 10))
        inside = jnp.linspace(0, 1, 100)
        parts = [Decomposition(v, v, v) for v in (inside, inside + separation)]
        return {"clean": (log_probs, parts[0]), "ood": (log_probs, parts[1])}

    tried = [(0.1, found(100, 0.1)), (1.0, found(100, 0.3)), (10.0, found(80, 0.9))]
    best, rows = bench.chosen(tried, task)
    assert best == 1.0
    assert [row["held_accuracy"] for row in rows] == pytest.approx([1.0, 1.0, 0.8])
    assert rows[2]["held_auroc"] > rows[1]["held_auroc"] > rows[0]["held_auroc"]


@pytest.mark.parametrize("name", ["SiLU", "Softmax", "Hardshrink"])
def test_one_program_has_every_activation(name):
    f, start = sine._network(Sine(hidden=7))
    x = jnp.linspace(-2, 2, 9)[:, None]
    params = start(KEY)
    index = jnp.asarray([*ACTIVATIONS].index(name))
    alone = MLP((1, 7, 7, 2), ACTIVATIONS[name], rngs=nnx.Rngs(KEY))
    np.testing.assert_allclose(jax.jit(f)(params, x, index), alone(x), rtol=1e-5, atol=1e-6)


def test_every_method_has_a_place():
    names = [method.name for method in methods.METHODS]
    assert len(set(names)) == len(names)
    some = SimpleNamespace(settings=SIZES["fast"])
    kept = [m.name for m in methods.methods(some) if m.name.startswith(methods.RLLE)]
    assert kept == [f"{methods.RLLE}{kind}" for kind in SIZES["fast"].kinds]
    assert {m.source for m in methods.METHODS} > {"MAP", "DDU", "SNGP", "LL-POVI", "DE-5"}
