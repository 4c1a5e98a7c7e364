"""One network holds every activation function, trials are kept, and rankings are the source's."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from typer.testing import CliRunner

from experiments.activations import judging, network, recipe, trials
from experiments.activations.__main__ import app
from experiments.activations.recipe import Trial
from experiments.activations.source import MOONS, SINE
from experiments.activations.starts import trained_starts
from experiments.activations.store import Outcome, Store
from experiments.report import Report
from jaxeff.nn import ACTIVATIONS, SplineActivation
from jaxeff.nn.activations import prelu


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
    report = Report("activations", {}, rows=rows)
    judging.judge(report)
    return {check["name"]: check["passed"] for check in report.checks}


def test_the_sources_own_numbers_pass_the_checks():
    rows = [row("sine-nuts", n, r.auroc, r.auroc) for n, r in SINE.items()]
    rows += [row("sine-nuts-prior", n, r.auroc, r.auroc) for n, r in SINE.items()]
    rows += [row("moons-nuts", n, r.auroc_nuts) for n, r in MOONS.items()]
    rows += [row("moons-svi", n, r.auroc_svi) for n, r in MOONS.items()]
    checks = judged(rows)
    assert len(checks) == 7
    assert all(checks.values())
    compared = judging.compare(rows[: len(SINE)], "auroc")
    assert compared["correlation"] == pytest.approx(1)
    assert compared["ranking"][0] == {"activation": "Cosine", "ours": 1, "source": 1}


def test_other_numbers_fail_them():
    rows = [row("sine-nuts", n, 1 - r.auroc, r.auroc) for n, r in SINE.items()]
    rows += [row("moons-nuts", n, 1 - r.auroc_nuts) for n, r in MOONS.items()]
    assert not any(judged(rows).values())
    assert judging.compare(rows[: len(SINE)], "auroc")["correlation"] == pytest.approx(-1)


def test_chains_that_did_not_converge_fail_the_check():
    rows = [
        row("sine-nuts", "ReLU", 0.9, rhat_max=1.01, converged=True),
        row("sine-nuts", "Tanh", 0.9, rhat_max=1.2, converged=False),
    ]
    assert judged(rows[:1]) == {"sine-nuts: R-hat of predictions below 1.05": True}
    assert judged(rows) == {"sine-nuts: R-hat of predictions below 1.05": False}


def test_finished_trials_are_kept_unless_settings_change(tmp_path):
    trial, other = Trial("sine", "nuts", "ReLU"), Trial("moons", "svi", "ReLU")
    store = Store(tmp_path, recipe.FULL)
    assert store.load(trial) is None
    store.save(trial, Outcome({"auroc": 0.5}, {"mean": jnp.arange(3.0)}))
    found = store.load(trial)
    assert found.row == {"auroc": 0.5}
    np.testing.assert_array_equal(found.curves["mean"], [0, 1, 2])
    assert store.load(other) is None
    reseeded = dataclasses.replace(recipe.FULL, seed=1)
    assert Store(tmp_path, reseeded).load(trial) is None
    # Settings of the moons are nothing to the sine.
    wider = dataclasses.replace(recipe.FULL, moons_margin=2.0)
    assert Store(tmp_path, wider).load(trial) is not None


def test_chains_from_the_prior_are_trials_of_their_own():
    plan = recipe.FULL.plan("sine")
    methods = [trial.method for trial in plan]
    assert (methods.count("nuts"), methods.count("nuts-prior")) == (28, 27)
    trained, drawn = (Trial("sine", method, "ReLU") for method in ("nuts", "nuts-prior"))
    assert recipe.FULL.of(trained)["start_steps"] == 400
    assert recipe.FULL.of(drawn)["start_steps"] == 0
    longer = recipe.choose(False, 0, 700)
    assert longer.of(trained)["samples"] == longer.of(drawn)["samples"] == 700


def test_a_start_without_training_is_a_draw_of_the_prior():
    tanh, params = network.single("Tanh", (1.4, 0.5, 0.5)), network.start(jax.random.key(0), 1, 2)
    x = jnp.linspace(-1, 1, 40)[:, None]
    starts = [
        trained_starts(
            jax.random.key(1), lambda p, x, _: tanh(p, x), params, (x, jnp.sin(3 * x[:, 0])),
            jnp.asarray(0), likelihood="gaussian", chains=3, steps=steps,
        )
        for steps in (0, 200)
    ]  # fmt: skip
    drawn, trained = (jax.vmap(lambda p: tanh(p, x))(start)[..., 0] for start in starts)
    np.testing.assert_array_equal(drawn, 0)  # the last layer's
    kernel = starts[0]["fc2"]["kernel"]
    assert float(kernel.std()) == pytest.approx(network.PRIOR, rel=0.05)
    assert float(((trained - jnp.sin(3 * x[:, 0])) ** 2).mean()) < 0.05


@pytest.fixture
def inferred(monkeypatch):
    """Trials without the inference, which is tested where it is built; and which of them ran."""
    ran = []
    points = recipe.FAST.moons_points**2

    def run(trial, settings, store):
        ran.append(str(trial))
        found = row(f"{trial.task}-{trial.method}", trial.activation, 0.5 + 0.1 * len(ran), 0.7)
        found |= {"accuracy": 0.9, "source_accuracy": 0.88, "seconds": 1.0}
        maps = {
            "probability": jnp.linspace(0, 1, points),
            "epistemic": jnp.linspace(0, 0.5, points),
        }
        return Outcome(found, maps)

    monkeypatch.setattr(trials, "run", run)
    return ran


def test_the_study_reports_and_goes_on_where_it_stopped(tmp_path, inferred):
    path = tmp_path / "out.json"
    arguments = ["--task", "moons", "--activation", "Sine", "--activation", "Sigmoid", "--fast"]
    arguments += ["--results", str(tmp_path), "--json", str(path)]
    first = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert first.exit_code == 0, first.output
    expected = ["moons-nuts-Sine", "moons-nuts-Sigmoid", "moons-svi-Sine", "moons-svi-Sigmoid"]
    assert inferred == expected
    report = json.loads(path.read_text())
    assert {"config", "versions", "rows", "checks", "rankings", "differences"} <= set(report)
    assert [f"{r['table']}-{r['activation']}" for r in report["rows"]] == expected
    for name in ("moons-nuts", "moons-svi"):
        picture = tmp_path / f"activations-fast-{name}.png"
        assert picture.read_bytes().startswith(b"\x89PNG")
    # Again, with one network missing: only that one is inferred.
    (tmp_path / "activations-fast" / "moons-svi-Sine.safetensors").unlink()
    second = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert "3 of 4 networks were inferred before" in second.output
    assert inferred[4:] == ["moons-svi-Sine"]
    assert len(json.loads(path.read_text())["rows"]) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--task", "cifar"], "choose sine, moons, all"), (["--activation", "relu"], "choose Cosine")],
)
def test_unknown_names_are_one_clear_error(arguments, message):
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert message in result.output
