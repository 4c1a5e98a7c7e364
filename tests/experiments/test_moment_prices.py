from types import SimpleNamespace

import jax
import numpy as np
import pytest

from experiments.beyond import moment_prices as prices
from experiments.beyond.moment_variances.networks import spread, untrained
from experiments.beyond.moment_variances.recipe import NETWORKS
from experiments.harness import Report
from jaxeff.moment_propagation import moments
from jaxeff.nn import small_classifier


def report(costs):
    rows = [
        {
            "table": "networks",
            "network": "ViT",
            "engine": "TVM",
            "method": method,
            "cost": cost,
            "results": 10,
        }
        for method, cost in costs.items()
    ]
    return Report("moment_prices", "default", {}, rows, {})


@pytest.mark.parametrize(
    ("costs", "failing"),
    [
        ({"calibrated": 2.4, "linear": 27.9, "diagonal": 9.0}, 0),
        ({"calibrated": 2.6}, 1),
        ({"calibrated, pooled": 2.6}, 1),
        ({"linear": 28.1}, 1),
    ],
)
def test_each_target_can_fail(costs, failing):
    one = report(costs)
    prices.STUDY.judge(one)
    assert [check["passed"] for check in one.checks].count(False) == failing


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_is_drawn_with_a_batch_that_it_takes(name):
    f, params, x = untrained(name, jax.random.key(0), 3)
    assert len(jax.eval_shape(f, params, x)) == len(x) == 3


def test_xla_computes_the_same_with_dots_alone():
    """The option is one that this XLA knows, and it reaches the compiler."""
    f, params, (x, _) = small_classifier(4)
    posterior = spread(params, 0.1)
    compiled = jax.jit(moments(f), compiler_options=prices.DOTS_ALONE).lower(posterior, x).compile()
    plain = jax.jit(moments(f)).lower(posterior, x).compile()
    assert compiled.as_text() != plain.as_text()
    for ours, expected in zip(
        jax.tree.leaves(compiled(posterior, x)), jax.tree.leaves(plain(posterior, x)), strict=True
    ):
        np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-6)


def test_a_core_without_a_compiler_is_named(monkeypatch):
    monkeypatch.setattr(prices, "has_toolchain", lambda core: False)
    said = []
    run = SimpleNamespace(settings=prices.Settings(networks=("ViT",)), say=said.append)
    assert {engine for _, engine in prices.networks(run)} == {"XLA", "XLA, dots alone", "TVM"}
    assert said == ["Cortex-M7 is left out: there is no compiler for cortex-m7 here."]


@pytest.mark.arm
def test_a_core_runs_what_is_counted():
    """A pass takes more instructions and memory than its function, and has XLA's results."""
    f, params, (x, _) = small_classifier(1)
    passes = {
        prices.ALONE: (f, params),
        "diagonal": (moments(f, method="diagonal"), spread(params, 0.1)),
    }
    (row,) = prices.on_core("net", passes, x)
    assert row["error"] < 1e-3
    assert 1 < row["cost"] < 20
    assert row["memory"] > 1


@pytest.mark.slow
def test_tvm_computes_what_is_timed():
    f, params, (x, _) = small_classifier(4)
    meter, error = prices.METERS["TVM"](moments(f, method="diagonal"), spread(params, 0.1), x)
    assert error < 1e-3
    assert meter(2) > 0
