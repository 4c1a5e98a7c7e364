"""Reports: what they measure against what they are made of, and pages that need nothing else."""

import html
import json
from html.parser import HTMLParser

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from sklearn.metrics import roc_auc_score

import jaxeff
from jaxeff import compression, robustness, uncertainty
from jaxeff.nn import small_classifier
from jaxeff.pruning import Prune
from jaxeff.reporting import SECTIONS, Report, judge_predictions
from jaxeff.reporting import _report as measured
from jaxeff.store import CheckpointError

EMPTY = {"meta", "img", "link", "br"}


class Page(HTMLParser):
    """Reads a page, and holds that every tag is closed where it was opened."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.text = [], [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def model():
    """A classifier with parameters of which a fifth are noise, inputs, and others out of domain."""
    f, params, (x, y) = small_classifier(120)
    posterior = jax.tree.map(lambda w: jaxeff.Gaussian(w, 0.04 * w**2), params)
    return f, params, posterior, (x, y), jax.random.normal(jax.random.key(1), x.shape)


def test_layers_and_predictions(model, tmp_path):
    f, params, _, (x, y), outside = model
    report = jaxeff.report(
        jax.random.key(0),
        f,
        params,
        (x, y),
        outside=outside,
        title="a <b> & c",
        sections=("layers", "predictions"),
    )
    assert list(report.sections) == ["layers", "predictions"]
    cost = jaxeff.cost(f, params, x[:1])
    layers = report.sections["layers"]
    assert (layers["params"], layers["macs"], layers["size"]) == (cost.params, cost.macs, cost.size)
    assert max(row["live"] for row in layers["rows"]) == layers["peak"] == cost.peak
    predictions = report.sections["predictions"]
    assert predictions["inside"]["accuracy"] == pytest.approx(
        float((f(params, x).argmax(-1) == y).mean())
    )
    scores = [scipy.stats.entropy(jax.nn.softmax(f(params, of)), axis=-1) for of in (x, outside)]
    expected = roc_auc_score(np.repeat([0, 1], len(x)), np.concatenate(scores))
    assert predictions["auroc"] == pytest.approx(expected, abs=1e-6)
    page = Page(report.html)
    assert "a <b> & c" in "".join(page.text)
    # Nothing is fetched, and nobody who can't see a picture is left without its words.
    for tag, attributes in page.tags:
        assert tag not in ("script", "link")
        assert attributes.get("src", "data:").startswith("data:")
        assert attributes.get("href", "#").startswith("#")
        assert tag != "img" or attributes["alt"]
    assert {"layers", "predictions", "made"} <= {of.get("id") for _, of in page.tags}
    for name in ("page.html", "card.md", "page.json"):
        report.save(tmp_path / name)
    assert Report.load(tmp_path / "page.json").html == report.html
    with pytest.raises(ValueError, match=r"\.html, \.md, \.json, not as \.pdf"):
        report.save(tmp_path / "page.pdf")


def test_tables_of_a_card_have_as_many_cells_as_columns(model):
    f, params, _, data, _ = model
    card = jaxeff.report(
        jax.random.key(0), f, params, data, title="a|b", sections=("layers",)
    ).markdown
    tables = [block.splitlines() for block in card.split("\n\n") if block.lstrip().startswith("|")]
    assert len(tables) == 2
    for lines in tables:
        rules = [line for line in lines if line.startswith("|---") or line.startswith("|---:")]
        assert len(rules) == 1
        assert len({line.count("|") - line.count("\\|") for line in lines}) == 1, lines


def test_what_does_not_apply_says_why(model):
    f, params, _, data, _ = model
    report = jaxeff.report(jax.random.key(0), f, params, data, sections=("moments",))
    assert "nothing is random" in report.sections["moments"]["missing"]
    assert "Not measured: nothing is random" in report.markdown
    with pytest.raises(ValueError, match="sections"):
        jaxeff.report(jax.random.key(0), f, params, data, sections=("nosie",))


def test_batches_are_read_into_arrays(model):
    f, params, _, (x, y), _ = model
    batches = ([x[i : i + 50], y[i : i + 50]] for i in range(0, 120, 50))  # the last has 20
    sections = {"sections": ("predictions",)}
    read = jaxeff.report(jax.random.key(0), f, params, batches, **sections)
    arrays = jaxeff.report(jax.random.key(0), f, params, (x, y), **sections)
    assert read.sections == arrays.sections
    assert read.facts == arrays.facts
    with pytest.raises(TypeError, match="report: data must be a pair"):
        jaxeff.report(jax.random.key(0), f, params, iter([x]))


def of_two(params, a, b):
    h = jax.nn.relu(a @ params["left"]["kernel"] + b @ params["right"]["kernel"])
    return h @ params["head"]["kernel"]


@pytest.fixture(scope="module")
def several():
    """A classifier of two inputs, its parameters, inputs and labels, more than one batch."""
    shapes = {"left": (4, 6), "right": (3, 6), "head": (6, 3)}
    keys = iter(jax.random.split(jax.random.key(0), 5))
    params = {n: {"kernel": jax.random.normal(next(keys), s)} for n, s in shapes.items()}
    a, b = jax.random.normal(next(keys), (300, 4)), jax.random.normal(next(keys), (300, 3))
    return params, a, b, of_two(params, a, b + 0.5).argmax(-1)


def of_dict(params, inputs):
    return of_two(params, inputs["a"], inputs["b"])


FORMS = {
    "a tuple": lambda a, b, y: (of_two, ((a, b), y), (-a, -b)),
    "flat": lambda a, b, y: (of_two, (a, b, y), ((-a, -b), y)),
    "batches": lambda a, b, y: (
        of_two, iter([(a[:200], b[:200], y[:200]), (a[200:], b[200:], y[200:])]), (-a, -b, y),
    ),
    "a list": lambda a, b, y: (lambda params, ab: of_two(params, *ab), ([a, b], y), [-a, -b]),
    "a dict": lambda a, b, y: (of_dict, ({"a": a, "b": b}, y), ({"a": -a, "b": -b}, y)),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_layers_of_several_inputs(several, form):
    params, a, b, y = several
    f, data, outside = FORMS[form](a, b, y)
    only = {"sections": ("layers",)}
    page = jaxeff.report(jax.random.key(0), f, params, data, outside=outside, **only)
    assert page.sections["layers"]["params"] == 4 * 6 + 3 * 6 + 6 * 3
    assert page.facts["examples"] == 300


def test_several_inputs_in_another_order_are_refused(several):
    params, a, b, y = several
    with pytest.raises(TypeError, match=r"report: data .*the inputs are in each other's place"):
        jaxeff.report(jax.random.key(0), of_two, params, ((b, a), y), sections=("layers",))


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_predictions_of_several_inputs_are_those_of_one_array(several, form):
    params, a, b, y = several
    key, only = jax.random.key(0), {"sections": ("predictions",)}

    def joined(params, ab):
        return of_two(params, ab[:, :4], ab[:, 4:])

    f, data, outside = FORMS[form](a, b, y)
    both = jnp.concatenate([a, b], 1)
    labelled = isinstance(outside, tuple) and outside[-1] is y
    beyond = (-both, y) if labelled else -both
    expected = jaxeff.report(key, joined, params, (both, y), outside=beyond, **only).sections
    sections = jaxeff.report(key, f, params, data, outside=outside, **only).sections
    ours, theirs = sections["predictions"], expected["predictions"]
    for name in ("accuracy", "nll", "ece"):
        np.testing.assert_allclose(ours["inside"][name], theirs["inside"][name], rtol=1e-5)
    np.testing.assert_allclose(ours["auroc"], theirs["auroc"], rtol=1e-5)
    assert ours["outside"].get("accuracy") == theirs["outside"].get("accuracy")
    assert ("accuracy" in ours["outside"]) == labelled


@pytest.mark.slow
def test_all_sections_take_several_inputs(several):
    params, a, b, y = several
    posterior = jax.tree.map(lambda w: jaxeff.Gaussian(w, 0.01 * w**2), params)
    settings = {"levels": (0.1, 1.0), "widths": (4, 8), "shares": (0.5,), "examples": 280}
    page = jaxeff.report(jax.random.key(0), of_two, posterior, (a, b, y), **settings)
    assert not [name for name, section in page.sections.items() if "missing" in section]


def test_what_was_measured_before_a_kill_is_kept(model, tmp_path, monkeypatch):
    f, params, _, data, _ = model
    arguments = {"sections": ("layers", "predictions"), "folder": tmp_path, "title": "kept"}

    def killed(subject):
        raise KeyboardInterrupt

    monkeypatch.setattr(measured, "SECTIONS", {**SECTIONS, "predictions": killed})
    with pytest.raises(KeyboardInterrupt):
        jaxeff.report(jax.random.key(0), f, params, data, **arguments)
    monkeypatch.setattr(measured, "SECTIONS", {**SECTIONS, "layers": killed})
    continued = jaxeff.report(jax.random.key(0), f, params, data, **arguments)
    monkeypatch.undo()
    assert continued == jaxeff.report(
        jax.random.key(0), f, params, data, **arguments | {"folder": None}
    )
    other = jax.tree.map(lambda w: 2 * w, params)
    with pytest.raises(CheckpointError, match="another run"):
        jaxeff.report(jax.random.key(0), f, other, data, **arguments)


def test_a_curve_of_risk_counts_what_is_out_of_domain_as_wrong():
    logits = jnp.array([[4.0, 0.0], [0.0, 3.0]])
    judged = judge_predictions(jax.random.key(0), logits, jnp.array([0, 1]), logits / 10)
    assert judged["inside"]["accuracy"] == 1
    np.testing.assert_allclose(judged["risk_of_both"]["risk"], [0, 0, 1 / 3, 1 / 2], atol=1e-6)
    labelled = judge_predictions(
        jax.random.key(0), logits, jnp.array([0, 1]), logits / 10, jnp.array([0, 1])
    )
    assert float(labelled["risk_of_both"]["risk"][-1]) == 0


@pytest.mark.slow
def test_all_sections_of_a_posterior(model):
    f, params, posterior, (x, y), outside = model
    levels, widths, shares = (0.01, 0.1, 1.0, 10.0), (2, 8), (0.5,)
    report = jaxeff.report(
        jax.random.key(0),
        f,
        posterior,
        (x, y),
        outside=(outside, y),
        levels=levels,
        widths=widths,
        shares=shares,
    )
    assert list(report.sections) == list(SECTIONS)
    assert not any("missing" in section for section in report.sections.values())
    bits = report.sections["bits"]
    for width, accuracy in zip(widths, bits["accuracies"], strict=True):
        spec = compression.bit_policy(bits["sites"], *[jnp.full(len(bits["sites"]), width)] * 2)
        logits = jax.jit(compression.quantized(f, spec))(params, x)  # rounds as one program does
        assert accuracy == pytest.approx(float(uncertainty.accuracy(logits, y)))
    said = f"the accuracy in floats of the first {len(y)} inputs, with each parameter's mean"
    assert said in html.unescape(report.html)
    channels = report.sections["channels"]
    plan = jaxeff.prune_plan(f, params, x[:1], {"*:linear": Prune(0.5)})
    small = plan.shrink(params)
    assert channels["curve"][0]["params"] == sum(w.size for w in jax.tree.leaves(small))
    logits = jaxeff.pruned(f, plan)(small, x)
    assert channels["curve"][0]["accuracy"] == pytest.approx(float(uncertainty.accuracy(logits, y)))
    # Each group alone costs at most what nobody can lose, and one of them is named.
    assert channels["worst"] in {row["group"] for row in channels["rows"]}
    noise = report.sections["noise"]
    assert noise["worst"] in {row["site"] for row in noise["rows"]}
    assert noise["mean"][0] > noise["mean"][-1]
    # By halves of the levels, and as if all of them were measured.
    sites = [row["site"] for row in noise["rows"]]
    key = jax.random.split(jax.random.fold_in(jax.random.key(0), [*SECTIONS].index("noise")))[1]
    some = x[: measured.PERTURBED]
    every = robustness.kl_sensitivity(key, f, params, some, sites, jnp.array(levels), draws=2)
    alone = [np.inf if row["level"] is None else row["level"] for row in noise["rows"]]
    np.testing.assert_allclose(alone, robustness.tolerated_level(every), rtol=1e-5)
    moments = report.sections["predictions"]
    assert moments["random"]
    assert moments["outside"]["accuracy"] < moments["inside"]["accuracy"] + 0.2
    Page(report.html)
    # Plain data: JSON keeps all of it.
    assert json.loads(json.dumps(report.sections)) == report.sections


def test_a_target_by_itself_adds_up():
    """Cycles and bytes of the calls of a library, whose sums the page says."""
    calls = [
        {"kernel": "dense", "instructions": 700, "cycles": 900.0, "parameters": 64, "live": 48},
        {"kernel": "relu", "instructions": 50, "cycles": 300.0, "parameters": 0, "live": 32},
    ]
    facts = {
        "name": "cortex-m4", "machine": "arm", "check": "agrees with JAX", "verdict": "",
        "note": "Not timed.", "calls": calls, "sizes": {"code": 1200, "live_bytes": 48},
        "files": {"library.so": {"size": 4096, "sha256": "ab" * 32}},
    }  # fmt: skip
    page = Page(Report.of_target("net", facts).html)
    text = " ".join(" ".join(page.text).split())
    assert "Compiled for cortex-m4 (arm). agrees with JAX." in text
    assert "1,200 cycles by a static model, 75 % of them in dense" in text
    assert "Not timed." in text
    # The total of each column, in its order; live memory is the most at once and no sum.
    assert "total 750 1,200 64 48" in text
    assert "4,096" in text
    assert "ab" * 8 in text
