"""Results show a summary of themselves, on a console and in a notebook."""

import sys
import types
from html.parser import HTMLParser

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxeff
from jaxeff.bayes import NUTS, Draws, LowRank, MCMCResult, SVIResult, laplace, mcmc, svi
from jaxeff.core import Table
from jaxeff.noise import Additive, Repeated
from jaxeff.program import SpecError
from jaxeff.robustness import summarize
from jaxeff.training import FitResult, SweepResult

PARAMS = {"fc": {"bias": jnp.zeros(3), "kernel": jnp.zeros((2, 3))}}
DRAWS = Draws({"fc/kernel": jnp.arange(60.0).reshape(2, 5, 2, 3)}, PARAMS)


def chains(thin=1):
    shape = (2, 5 * thin)
    stats = {
        "step_size": np.full(shape, 0.1),
        "acceptance": np.full(shape, 0.9),
        "divergent": np.zeros(shape, bool),
        "log_density": np.arange(10.0 * thin).reshape(shape),
        "steps": np.ones(shape, int),
        "energy": np.ones(shape),
    }
    return MCMCResult(DRAWS, stats, stats, None, (1.0, 2.0))


def curve():
    return summarize([0.1, 0.2], [[0.9, 0.8], [0.8, 0.7]])


def joint():
    guide = LowRank(rank=2)
    numbers = guide.start(jax.random.key(0), PARAMS, {"fc/kernel": jnp.ones((2, 3))})
    return guide.posterior(numbers, {"fc/bias": None, "fc/kernel": 1.0})


def f(params, x):
    return jax.nn.relu(x @ params["fc"]["kernel"] + params["fc"]["bias"])


def layers(**settings):
    return jaxeff.summary(f, PARAMS, jnp.ones((1, 2)), **settings)


def test_trained_results_show_no_arrays():
    history = [{"epoch": 0, "loss": 2.0, "accuracy": 0.1}, {"epoch": 1, "loss": 0.5}]
    shown = str(FitResult(PARAMS, None, (), history))
    assert "2 epochs, 9 parameters" in shown
    assert "0.5" in shown
    assert "array" not in repr(FitResult(PARAMS, None, (), []))
    loss = np.arange(12.0).reshape(2, 3, 2)  # seeds, settings, epochs
    swept = SweepResult({"score": np.ones((2, 3, 4))}, loss, loss[..., 0] > 7, PARAMS, None)
    assert "means over 2 seeds" in swept._repr_html_()
    assert " 4 " in str(swept)  # the last losses 1 and 7 of the first setting
    assert "array" not in str(swept)


def test_a_laplace_posterior_is_a_line():
    labels = jnp.array([0, 1, 2, 0])
    x = jax.random.normal(jax.random.key(0), (4, 2))
    posterior = laplace(jax.random.key(0), f, PARAMS, (x, labels), "fc", prior_precision=2.0)
    # The network is zero: every class has a third.
    assert repr(posterior).endswith("prior precision 2, log-likelihood -4.394 nats)")


def test_a_summary_shows_what_is_known_of_variances():
    said = "variances, divided by the true ones: 0.98"
    shown = layers(verdict=said)
    assert said in str(shown)
    assert said in shown._repr_html_()
    assert "activations at a time" in str(shown)


def variational():
    posterior = {"fc": {"bias": jnp.zeros(3), "kernel": jaxeff.Gaussian(*jnp.ones((2, 2, 3)))}}
    history = [{"epoch": i, "loss": 2.5, "nll": 2.0 - i, "kl": 30.0} for i in range(2)]
    return SVIResult(posterior, history)


def test_a_spec_shows_what_each_site_gets():
    levels = Additive(jnp.ones(4), along="sample")
    spec = {"fc": levels, "*": Repeated(Additive(jnp.float32(0.5)), 2), "relu": None}
    rows = layers(spec=spec)._table().rows
    assert {row[0]: row[-1] for row in rows} == {
        "input": "Repeated(model=Additive(sigma=0.5), times=2)",
        "fc": "Additive(sigma=float32[4], along='sample')",
        "relu": "",
    }
    with pytest.raises(SpecError, match="nothing"):
        layers(spec={"nothing": levels})


def test_sites_are_names_and_show_their_kinds():
    found = jaxeff.sites(f, PARAMS, jnp.ones((1, 2)))
    assert found == ("input", "fc", "relu")
    assert Cells(found._repr_html_()).cells[2:] == [
        "input", "input", "fc", "linear", "relu", "elementwise"
    ]  # fmt: skip


def test_a_gaussian_says_its_shape_and_ranges():
    some = jaxeff.Gaussian(jnp.array([[-1.0, 2.0]]), jnp.array([[0.25, 4.0]]))
    assert repr(some) == "Gaussian(float32[1,2], mean -1 to 2, std 0.5 to 2)"
    assert repr(jaxeff.Gaussian(0.5, 0.0)) == "Gaussian(float32[], mean 0.5, std 0)"
    assert repr(jaxeff.Gaussian(None, "var")) == "Gaussian(mean=None, var='var')"
    assert "float32[0]" not in repr(jaxeff.Gaussian(jnp.ones(0), jnp.ones(0)))
    inside = []
    jax.jit(lambda g: inside.append(repr(g)) or g.mean)(some)
    assert "Gaussian(mean=" in inside[0]
    assert "Gaussian(mean=" in repr(jax.eval_shape(lambda g: g, some))


class Cells(HTMLParser):
    """The text of a table's cells; fails where tags don't match."""

    def __init__(self, text):
        super().__init__()
        self.open, self.cells = [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        if tag != "br":
            self.open.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1] in ("td", "th"):
            self.cells[-1] += data


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (chains, ["acceptance", "0.900", "2 chains of 5 draws", "nothing speaks against"]),
        (curve, ["accuracy", "0.8500", "2 replicates"]),
        (lambda: DRAWS, ["fc/kernel", "2x3", "random", "fixed", "6 random numbers"]),
        (joint, ["fc/kernel", "LowRank(rank=2)", "fixed"]),
        (variational, ["fc/kernel", "fixed", "2 epochs, nll 2 to 1, kl 30", "6 random numbers"]),
        (layers, ["fc", "linear", "total", "3 layers"]),
    ],
    ids=["chains", "curve", "draws", "joint", "svi", "summary"],
)
def test_a_result_says_the_same_on_a_console_and_in_a_notebook(make, said):
    result = make()
    text, page = repr(result), result._repr_html_()
    assert "array(" not in text + page
    for words in said:
        assert words in text
        assert words in page
    for cell in Cells(page).cells:
        assert cell in text


def test_cells_are_escaped():
    table = Table(("a", "b>"), [("<x>", "1")], ("&", "2"), "c < d")
    assert Cells(table._repr_html_()).cells == ["a", "b", "<x>", "1", "&", "2"]
    assert "c &lt; d" in table._repr_html_()


def test_a_curve_is_still_a_tuple():
    levels, mean, *_ = curve()
    np.testing.assert_allclose((levels, mean), ([0.1, 0.2], [0.85, 0.75]))


@pytest.mark.parametrize("thin", [1, 2])
def test_chains_go_to_arviz(thin):
    data = chains(thin).to_arviz()
    assert data.posterior["fc.kernel"].dims[:2] == ("chain", "draw")
    np.testing.assert_array_equal(data.posterior["fc.kernel"], DRAWS.random["fc/kernel"])
    assert set(data.sample_stats) == {
        "acceptance_rate", "diverging", "energy", "lp", "n_steps", "step_size"
    }  # fmt: skip
    kept = np.arange(10.0 * thin).reshape(2, -1)[:, thin - 1 :: thin]
    np.testing.assert_array_equal(data.sample_stats["lp"], kept)


def test_chains_go_to_arviz_from_version_1_on(monkeypatch):
    """Its `from_dict` takes the groups as one argument."""
    later = types.SimpleNamespace(from_dict=lambda data, *, name=None: data)
    monkeypatch.setitem(sys.modules, "arviz", later)
    data = chains().to_arviz()
    assert set(data) == {"posterior", "sample_stats"}
    np.testing.assert_array_equal(data["posterior"]["fc.kernel"], DRAWS.random["fc/kernel"])


def test_arviz_is_asked_for_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "arviz", None)
    with pytest.raises(ImportError, match=r"pip install 'jaxeff\[arviz\]'"):
        chains().to_arviz()


def test_an_unknown_option_names_the_nearest():
    data = jnp.ones((4, 2)), jnp.arange(4) % 3
    with pytest.raises(TypeError, match="'warm_up'; did you mean 'warmup'"):
        mcmc(jax.random.key(0), f, PARAMS, data, NUTS(), warm_up=3)
    with pytest.raises(TypeError, match=r"'epoch'; did you mean 'epochs'"):
        svi(jax.random.key(0), f, PARAMS, data, epoch=3)
