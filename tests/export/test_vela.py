"""Vela's cycles as a latency: of channels alone, lower for fewer, and refusals that say why."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jaxeff_export import MissingExtraError, vela_latency
from jaxeff_export.latency import _vela as vela

import jaxeff
from jaxeff.nn import ResNet8, small_classifier
from jaxeff.search import (
    Actions,
    Candidate,
    Candidates,
    Knapsack,
    LatencyError,
    Policy,
    SearchSpace,
    search_among,
    sensitivity,
)

INSTALLED = all(map(importlib.util.find_spec, ("ethosu", "litert_converter")))


def space_of(size=8):
    model = ResNet8(4, 3, widths=(8, 8, 16), rngs=nnx.Rngs(0))
    model.eval()
    f, params = jaxeff.functional(model)
    x = jax.random.normal(jax.random.key(0), (4, size, size, 3))
    y = jnp.arange(4)
    space = SearchSpace.read(f, params, x[:1])
    return x, space, Candidates(f, params, (x, y), (x, y), space, steps=0, batch_size=4)


@pytest.mark.slow
@pytest.mark.process
def test_cycles_are_those_of_the_channels():
    if not INSTALLED:
        pytest.skip("ethos-u-vela or litert-converter isn't installed")
    x, space, candidates = space_of()
    cycles = vela_latency(x, accelerator="ethos-u55-128")

    def taken(policy, latency=cycles):
        return latency(Candidate(policy, space, candidates.smaller))

    full = taken(space.uncompressed)
    half = dataclasses.replace(space.uncompressed, kept=space.uncompressed.kept // 2)
    fewer = taken(half)
    assert 0 < fewer < full
    # An Ethos-U has no narrower products: bits change nothing, and nothing is compiled for them.
    two = dataclasses.replace(half, weights=np.full_like(half.weights, 2))
    assert taken(two, vela_latency(x, accelerator="ethos-u55-128")) == fewer
    # Twice the multipliers take less time, and not half of it.
    wide = taken(space.uncompressed, vela_latency(x, accelerator="ethos-u55-256"))
    assert full / 2 < wide < full


def test_without_vela_the_extra_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    policy = Policy(*(np.zeros(1, np.int32) for _ in range(4)))
    with pytest.raises(MissingExtraError, match=r"ethos-u-vela.*jaxeff\[vela\]"):
        vela_latency(np.zeros((1, 4)))(Candidate(policy, None, None))


def test_another_accelerator_is_refused():
    with pytest.raises(ValueError, match=r"accelerator must be one of .*ethos-u55-128"):
        vela_latency(np.zeros((1, 4)), accelerator="ethos-n78")


@pytest.mark.slow
def test_a_knapsack_weighs_channels_by_cycles(monkeypatch):
    # In place of the compiler: eight cycles for a channel, whatever it multiplies.
    monkeypatch.setattr(vela, "require_extra", lambda *names: None)
    monkeypatch.setattr(vela, "_written", lambda candidate, *more: candidate.policy.kept)
    monkeypatch.setattr(vela, "estimated_cycles", lambda kept, accelerator: 8.0 * kept.sum())
    f, params, data = small_classifier()
    space, actions = SearchSpace.read(f, params, data[0][:1]), Actions("pruning", round_to=1)
    outcome = search_among(
        jax.random.key(0),
        Candidates(f, params, data, data, space, steps=0, batch_size=32),
        latency=vela_latency(data[0]), target=0.6, actions=actions, episodes=1, agent=Knapsack(9),
        known=sensitivity(f, params, data[0], space, actions), progress=False,
    )  # fmt: skip
    # Costs of single layers add up to a candidate's, so that the first network lands. Told
    # multiply-accumulates it is at 1.6 of what was asked.
    assert outcome.episodes[0]["ratio"] == pytest.approx(1, abs=0.2)


SUMMARY = "network,cycles_npu,cycles_total\nnet,90,120.5\n"


@pytest.mark.parametrize(
    ("said", "table", "status", "outcome"),
    [
        ("CPU operators = 0 (0.0%)", SUMMARY, 0, 120.5),
        ("CPU operators = 2 (9.0%)", SUMMARY, 0, "leaves 2 operators to the processor"),
        ("nothing of it", SUMMARY, 0, "leaves some operators"),
        ("Error: no such operator", None, 1, "status 1: Error: no such operator"),
    ],
)
def test_what_vela_says_is_read(said, table, status, outcome, tmp_path, monkeypatch):
    # A program in its place: what it writes is fixed.
    program = tmp_path / "vela.py"
    program.write_text(
        "import json, pathlib, sys\n"
        f"said, table, status = json.loads({json.dumps([said, table, status])!r})\n"
        "folder = pathlib.Path(sys.argv[sys.argv.index('--output-dir') + 1])\n"
        "folder.mkdir()\n"
        "if table: (folder / 'net_summary_x.csv').write_text(table)\n"
        "print(said)\nsys.exit(status)\n"
    )
    run = vela.subprocess.run
    monkeypatch.setattr(
        vela.subprocess, "run",
        lambda command, **more: run([sys.executable, program, *command[3:]], **more),
    )  # fmt: skip
    if isinstance(outcome, float):
        assert vela.estimated_cycles(tmp_path / "net.tflite", "ethos-u55-128") == outcome
    else:
        with pytest.raises(LatencyError, match=outcome):
            vela.estimated_cycles(tmp_path / "net.tflite", "ethos-u55-128")
