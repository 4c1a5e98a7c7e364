"""The fuzz of networks: what a seed gives, and what counts as wrong."""

import json
import warnings

import jax
import numpy as np
import pytest

import jaxeff
from experiments.beyond import trials
from experiments.beyond.fuzz import cells, edges, worker
from experiments.beyond.fuzz.drawing import Block, Draw
from experiments.beyond.fuzz.grammar import RULES, Network, network
from experiments.beyond.trials import Cell


def test_a_seed_is_one_network_and_another_seed_another():
    one, same, other = network(4, 5), network(4, 5), network(6, 5)
    assert one.words == same.words != other.words
    jax.tree.map(np.testing.assert_array_equal, one.block.params, same.block.params)
    np.testing.assert_array_equal(one.subject().alone, same.subject().alone)
    assert len(one.subject(8).args[0]) == 8
    assert not set(map(bytes, np.asarray(one.others))) & set(
        map(bytes, np.asarray(one.subject().args[0]))
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("axes", RULES)
def test_each_rule_makes_blocks_of_whole_batches(axes, seed):
    d, shape = Draw(seed), (4, 3, 6)[-axes:]
    x = d.normal(3, *shape)
    for rule in dict.fromkeys(RULES[axes]):
        if (block := rule(d, shape)) is None:
            continue
        results = block.apply(block.params, x)
        assert results.shape == (3, *block.shape(shape)), block.name
        assert np.isfinite(results).all(), block.name
        # What an example gives depends on no other.
        np.testing.assert_allclose(
            block.apply(block.params, x[1:2])[0], results[1], rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize(
    ("ratio", "warns", "status"),
    [(1.0, True, "right"), (0.7, False, "wrong"), (0.7, True, "warned"), (1.3, False, "right"),
     (1.4, False, "wrong"), (np.nan, False, "wrong"), (np.inf, True, "warned")],
)  # fmt: skip
def test_a_variance_is_wrong_where_nothing_warns_of_it(ratio, warns, status, monkeypatch):
    def variances(s, draws):
        if warns:
            warnings.warn("shared noise", jaxeff.MomentsWarning, stacklevel=1)
        return np.array([ratio]), np.ones(1), np.array([0.03])

    monkeypatch.setattr(cells.zoo, "variances", variances)
    cell = cells.moments(network(4, 5))
    assert cell.status == status
    assert ("shared noise" in cell.words) == warns


@pytest.mark.slow
def test_codes_of_another_function_are_wrong(monkeypatch):
    net = network(4, 5)
    assert cells.integer(net).status == "right"
    real = jaxeff.integer

    def biased(f, spec):
        return real(lambda p, x: f(p, x) + 0.01 * (len(x) == 1), spec)

    monkeypatch.setattr(jaxeff, "integer", biased)
    assert cells.integer(net).status == "wrong"


@pytest.mark.parametrize(
    ("f", "off", "status"),
    [(lambda p, x: x * p[0], 0.0, "right"), (lambda p, x: x * p[0], 3e-5, "wrong"),
     # Of sums this large float32 keeps three digits behind the point.
     (lambda p, x: x * p[0] + p[1] - p[1], 3e-4, "rounding"),
     (lambda p, x: x * p[0] + p[1] - p[1], 3e-3, "wrong")],
)  # fmt: skip
def test_what_float32_loses_is_no_fault(f, off, status):
    x, p = jax.random.normal(jax.random.key(0), (8, 4)), np.float32([1.25, 1e4])
    net = Network("", Block("", {"w": p}, lambda p, x: f(p["w"], x)), 4, x)
    exact = f(np.float64(p), np.asarray(net.others, np.float64))
    assert cells._as_xla(net, exact + off).status == status


def test_codes_that_a_bias_leaves_no_room_for_are_named():
    arrays = {
        "a/codes": np.array([[-127, 0], [3, 0]]),
        "b/codes": np.array([[127, 14]]),
        "b/bias": 0,
    }
    assert cells._rounded_anew(arrays) == ["b"]


def test_a_worker_says_what_became_of_each_task(monkeypatch, capsys):
    monkeypatch.setattr(trials, "allow", lambda seconds: None)
    monkeypatch.setitem(cells.COLUMNS, "fine", lambda net: Cell("right", float(net.batch)))
    monkeypatch.setitem(cells.COLUMNS, "broken", lambda net: {}["x"])
    worker.main(["60", "5", "4:fine", "4:broken", "6:fine"])
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(cell["task"], cell["status"]) for cell in told] == [
        ("4:fine", "right"), ("4:broken", "crash"), ("6:fine", "right"),
    ]  # fmt: skip
    assert [cell["number"] for cell in told] == [network(4, 5).batch, None, network(6, 5).batch]


@pytest.mark.parametrize("seed", range(6))
def test_edges_are_of_their_dtype(seed):
    of = edges.edged(seed)
    assert of.words == edges.edged(seed).words
    ends = np.finfo(of.x.dtype) if of.x.dtype.kind == "f" else np.iinfo(of.x.dtype)
    assert {ends.min, ends.max} <= set(of.x.ravel().tolist())
    results = np.asarray(jax.jit(of.f)({}, of.x))
    assert edges._same(of, results, "XLA").status == "right"
    off = results.copy()
    off.flat[0] = 1 - np.nan_to_num(off.flat[0]) if results.dtype != bool else ~off.flat[0]
    assert edges._same(of, off, "XLA").status == "wrong"
    assert edges._same(of, results[:1], "XLA").status == "wrong" or len(results) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64")  # torchax's own of a resize
@pytest.mark.parametrize("seed", range(4))
def test_a_module_of_torch_is_drawn_again_and_held(seed, monkeypatch):
    pytest.importorskip("torchax")
    from experiments.beyond.fuzz import modules

    words, _, x = modules.module(seed)
    again, _, same = modules.module(seed)
    assert words == again
    np.testing.assert_array_equal(x, same)
    assert modules.torch_module(seed).status == "right"
    real = jaxeff.functional

    def off(net):
        f, params = real(net)
        return lambda p, x: f(p, x) + 0.01 * (len(x) > 2), params

    monkeypatch.setattr(jaxeff, "functional", off)
    assert modules.torch_module(seed).status == "wrong"


@pytest.mark.slow
def test_source_in_c_is_held_under_all_flags(monkeypatch):
    net = network(4, 5)
    assert cells.c_source(net).status == "right"
    monkeypatch.setattr(cells, "FLAGS", ("-O1 --no-such-flag",))
    assert trials.tried(cells.c_source, net).status == "crash"
