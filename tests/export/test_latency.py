"""A search's latency from a library: what is compiled and timed, what a lost board does."""

import dataclasses
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from c_programs import require
from jaxeff_export import (
    TargetError,
    UnsupportedOpError,
    channel_multiple,
    measured_latency,
    modelled_latency,
    table_latency,
)

from jaxeff.contrib import DataflowPipeline, SystolicArray
from jaxeff.nn import small_classifier
from jaxeff.search import (
    Actions,
    Candidate,
    Candidates,
    FewBitLayers,
    LatencyError,
    SearchSpace,
    bit_operations,
)

F, PARAMS, (X, Y) = small_classifier(32)
SPACE = SearchSpace.read(F, PARAMS, X[:1], few_bit_layers=FewBitLayers(inputs=1, outputs=1))
CANDIDATES = Candidates(F, PARAMS, (X, Y), (X, Y), SPACE, steps=0, batch_size=32)
NOWHERE = "rpc://127.0.0.1:9"


def candidate(strength):
    actions = jnp.full((3, 3), strength)
    policy = jax.tree.map(np.asarray, Actions(round_to=4).policy(SPACE, actions))
    return Candidate(policy, SPACE, CANDIDATES.smaller)


def test_channels_fill_the_vectors_of_their_target():
    # NEON has four lanes; `smlad` takes two features of two products each, and four at a step.
    assert [channel_multiple(name) for name in ("cortex-a53", "cortex-m7", "riscv32")] == [4] * 3
    avx512 = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "skylake-avx512"}
    assert channel_multiple(avx512) == 16
    with pytest.raises(TargetError, match="cortex-z9"):
        channel_multiple("cortex-z9")


FEW = {"number": 2, "repeat": 3}
PREDICTORS = {
    "bit operations": lambda: bit_operations,
    "systolic array": SystolicArray,
    "dataflow": DataflowPipeline,
    "modelled cycles": lambda: modelled_latency(X[:1], target="cortex-a72"),
    "modelled instructions": lambda: modelled_latency(X[:1], target="cortex-m4", of="instructions"),
    "modelled flash": lambda: modelled_latency(X[:1], target="cortex-m4", of="flash"),
    "measured": lambda: measured_latency(X[:1], **FEW),
    "table": lambda: table_latency(X[:1], **FEW),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PREDICTORS)
def test_every_predictor_is_a_latency_of_a_search(name):
    """A number above zero, and less for a quarter of the channels where no clock says it."""
    if name.startswith("modelled"):
        require("llvm-mca", *(() if "cycles" in name else ("arm-none-eabi-gcc", "qemu-system-arm")))
    latency = PREDICTORS[name]()
    quarter = dataclasses.replace(SPACE.uncompressed, kept=SPACE.sizes // 4)
    pruned = Candidate(quarter, SPACE, CANDIDATES.smaller)
    most, least = latency(candidate(0.0)), latency(pruned)
    assert type(most) is type(least) is float
    assert least > 0
    assert most > 0
    if name not in ("measured", "table"):  # no clock, no noise
        assert least < most
        assert latency(pruned) == least
    if hasattr(latency, "measure_many"):
        assert all(each > 0 for each in latency.measure_many([pruned, candidate(0.0)]))


@pytest.mark.slow
def test_candidates_are_timed():
    """The next board takes over from one that isn't there."""
    latency = measured_latency(X[:1], boards=[NOWHERE, "local"], number=2, repeat=3)
    assert 0 < latency(candidate(0.0)) < 1
    assert 0 < latency(candidate(0.4)) < 1


@pytest.mark.slow
@pytest.mark.parametrize("strength", [0.0, 0.3, 0.8])
def test_codes_compute_what_the_search_measured(strength):
    """Ranges are kept in a library, and those of each sample in a search: predictions agree."""
    small = candidate(strength).small
    g, params = small.integer(X)
    ours, searched = jax.jit(g)(params, X), jax.jit(small.f)(small.params, X)
    assert np.corrcoef(ours.ravel(), searched.ravel())[0, 1] > 0.97
    if strength == 0.3:
        assert {str(leaf.dtype) for leaf in jax.tree.leaves(params) if leaf.ndim > 1} == {"int8"}


@pytest.mark.slow
def test_boards_measure_at_once(monkeypatch):
    """Three boards are at it at the same time, and each candidate has its own time."""
    together = threading.Barrier(3, timeout=60)  # breaks if they take turns

    class Steady:
        def __init__(self, board, number, repeat):
            self.board, self.uncompressed, self.first = board, None, 0.0

        def start(self, whole, first=None):
            self.uncompressed, self.first = whole, first or 1.0

        def seconds(self, bundle):
            together.wait()
            return bundle

    monkeypatch.setattr("jaxeff_export.latency._measured.AlternatingTimer", Steady)
    monkeypatch.setattr(
        "jaxeff_export.latency._measured.compiled",
        lambda candidate, policy, **rest: float(policy.kept.sum()),
    )
    latency = measured_latency(X[:1], boards=["a", "b", "c"])
    assert latency.boards == 3
    many = [candidate(strength) for strength in (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)]
    assert latency.measure_many(many) == [float(one.policy.kept.sum()) for one in many]


@pytest.mark.slow
def test_many_where_boards_are_lost():
    latency = measured_latency(X[:1], boards=[NOWHERE, "local"], number=2, repeat=3)
    assert all(0 < found < 1 for found in latency.measure_many([candidate(0.0), candidate(0.4)]))
    (lost,) = measured_latency(X[:1], boards=NOWHERE).measure_many([candidate(0.0)])
    assert isinstance(lost, LatencyError)


@pytest.mark.slow
def test_no_board():
    with pytest.raises(LatencyError, match=NOWHERE):
        measured_latency(X[:1], boards=NOWHERE)(candidate(0.0))


@pytest.mark.slow
def test_what_the_compiler_cannot(monkeypatch):
    def refuse(*args, **kwargs):
        raise UnsupportedOpError(["no fft"])

    monkeypatch.setattr("jaxeff_export.latency._measured.deploy", refuse)
    with pytest.raises(LatencyError, match=r"(?s)can't be compiled: .*no fft"):
        measured_latency(X[:1])(candidate(0.0))
