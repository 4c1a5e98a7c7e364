"""One network holds every activation function, and rankings are the thesis'."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from experiments.activations import findings, network, recipe
from experiments.activations.__main__ import STUDY
from experiments.activations.source import MOONS, SINE
from experiments.activations.trials import Climb, trained_starts
from experiments.harness import Refused, Report
from jaxeff.nn import ACTIVATIONS, SplineActivation
from jaxeff.nn.layers import prelu


@pytest.mark.slow
def test_one_compiled_network_is_that_of_every_activation():
    params = network.start(jax.random.key(0), 3, 2, hidden=8)
    x = jax.random.normal(jax.random.key(1), (5, 3))
    functions = dict(ACTIVATIONS)
    functions["PReLU"] = lambda x: prelu(x, params["slope"])
    learned = SplineActivation(rngs=nnx.Rngs(0))
    nnx.update(learned, params["spline"])
    functions[network.LEARNED] = learned
    scales = (1.4, 0.5, 2.0)
    evaluate = jax.jit(network.network(scales))
    for index, name in enumerate(network.NAMES):
        expected = x
        for layer, scale in zip(network.LAYERS, scales, strict=True):
            kernel, bias = params[layer]["kernel"], params[layer]["bias"]
            expected = expected @ (scale * kernel) + bias
            expected = functions[name](expected) if layer != "fc3" else expected
        np.testing.assert_allclose(
            evaluate(params, x, index), expected, rtol=1e-4, atol=1e-4, err_msg=name
        )
    assert evaluate._cache_size() == 1


def row(table, activation, auroc, source=None, **more):
    return {"table": table, "activation": activation, "auroc": auroc, "source_auroc": source} | more


def judged(rows):
    rankings = [
        {"table": table, **findings.compare(own, "auroc")}
        for table in findings.COLUMNS
        if all("source_auroc" in r and r["source_auroc"] for r in rows if r["table"] == table)
        and (own := [r for r in rows if r["table"] == table])
    ]  # fmt: skip
    report = Report("activations", "default", {}, rows, {"rankings": rankings})
    STUDY.judge(report)
    return {check["name"]: check["passed"] for check in report.checks}


def test_the_sources_own_numbers_pass_the_checks():
    rows = [row("sine-nuts", n, r.auroc, r.auroc, euc=r.euc) for n, r in SINE.items()]
    rows += [row("sine-nuts-prior", n, r.auroc, r.auroc, euc=r.euc) for n, r in SINE.items()]
    rows += [row("moons-nuts", n, r.auroc_nuts) for n, r in MOONS.items()]
    rows += [row("moons-svi", n, r.auroc_svi) for n, r in MOONS.items()]
    checks = judged(rows)
    assert len(checks) == 19
    assert all(checks.values())

    compared = findings.compare(rows[: len(SINE)], "auroc")
    assert compared["correlation"] == pytest.approx(1)
    assert compared["ranking"][0] == {"activation": "Cosine", "ours": 1, "source": 1}


def test_what_svi_does_better_is_judged_without_the_other_activations():
    rows = [row("moons-nuts", "Softplus", 0.8), row("moons-svi", "Softplus", 0.7)]
    checks = judged(rows)
    assert checks == {"moons, Softplus: AUROC of SVI less that of NUTS": False}
    assert judged(rows[:1]) == {}


def test_other_numbers_fail_them():
    rows = [row("sine-nuts", n, 1 - r.auroc, r.auroc, euc=1 - r.euc) for n, r in SINE.items()]
    rows += [row("moons-nuts", n, 1 - r.auroc_nuts) for n, r in MOONS.items()]
    # LeakyReLU0.5 stays as near to ReLU as it was.
    assert [name for name, passed in judged(rows).items() if passed] == [
        "sine-nuts: AUROC of LeakyReLU0.5 less that of ReLU, at most 0.01 from ReLU"
    ]
    assert findings.compare(rows[: len(SINE)], "auroc")["correlation"] == pytest.approx(-1)


def test_chains_that_did_not_converge_fail_the_check():
    rows = [
        row("sine-nuts", "ReLU", 0.9, rhat_max=1.01, converged=True),
        row("sine-nuts", "Tanh", 0.9, rhat_max=1.2, converged=False),
    ]
    assert judged(rows[:1]) == {"sine-nuts: R-hat of predictions below 1.05": True}
    assert judged(rows) == {"sine-nuts: R-hat of predictions below 1.05": False}


def test_chains_from_the_prior_are_trials_of_their_own():
    sine = dataclasses.replace(recipe.DEFAULT, task="sine")
    plan = sine.plan()
    methods = [trial.method for trial in plan]
    assert (methods.count("nuts"), methods.count("nuts-prior")) == (28, 27)
    assert (sine.sine.start_steps, sine.prior_start.start_steps) == (400, 0)
    longer = dataclasses.replace(sine, sine=dataclasses.replace(sine.sine, samples=700))
    assert [longer.how(trial).samples for trial in (plan[0], plan[-1])] == [700, 200]
    with pytest.raises(Refused, match="no activation 'relu': choose among Cosine"):
        dataclasses.replace(sine, only=("relu",)).plan()


@pytest.mark.slow
def test_a_start_without_training_is_a_draw_of_the_prior():
    tanh, params = network.single("Tanh", (1.4, 0.5, 0.5)), network.start(jax.random.key(0), 1, 2)
    x = jnp.linspace(-1, 1, 40)[:, None]
    starts = [
        trained_starts(
            jax.random.key(1), lambda p, x, _: tanh(p, x), params, (x, jnp.sin(3 * x[:, 0])),
            jnp.asarray(0), Climb(likelihood="gaussian", chains=3, steps=steps),
        )
        for steps in (0, 200)
    ]  # fmt: skip
    drawn, trained = (jax.vmap(lambda p: tanh(p, x))(start)[..., 0] for start in starts)
    np.testing.assert_array_equal(drawn, 0)  # the last layer's
    kernel = starts[0]["fc2"]["kernel"]
    assert float(kernel.std()) == pytest.approx(network.PRIOR, rel=0.05)
    assert float(((trained - jnp.sin(3 * x[:, 0])) ** 2).mean()) < 0.05


def test_figures_of_several_data_sets_are_their_means():
    rows = [
        {"table": "moons-nuts", "activation": "Sine", "auroc": auroc, "accuracy": 0.9,
         "rhat_max": rhat, "converged": rhat < 1.05}
        for auroc, rhat in ((0.9, 1.01), (0.8, 1.3))
    ]  # fmt: skip
    (row,) = findings.over_sets(rows)
    assert row["auroc"] == pytest.approx(0.85)
    assert not row["converged"]
    assert findings.over_sets(rows[:1]) == rows[:1]
    several = dataclasses.replace(STUDY.sizes["fast"], moons_sets=3, task="moons")
    assert len(several.plan()) == 3 * len(dataclasses.replace(several, moons_sets=1).plan())
    assert len({str(trial) for trial in several.plan()}) == len(several.plan())
