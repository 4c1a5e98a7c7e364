"""Sums of kernels' times: whose kernels they are, what is measured, what is kept, what is lost."""

import shutil

import jax
import numpy as np
import pytest
from jaxeff_export import deploy, modelled_latency, table_latency
from jaxeff_export.bundle.timing import OperatorTime
from jaxeff_export.latency.attribution import kernel_calls
from jaxeff_export.latency.cells import Cells
from jaxeff_export.latency.table import _split

from jaxeff.nn import small_classifier
from jaxeff.search import Candidate, Candidates, LatencyError, Legal, Policy, Space
from jaxeff.store import CheckpointError

F, PARAMS, (X, Y) = small_classifier(32)
SPACE = Space.read(F, PARAMS, X[:1], legal=Legal(inputs=1, outputs=1))
CANDIDATES = Candidates(F, PARAMS, (X, Y), (X, Y), SPACE, steps=0, batch_size=32)
FEW = {"number": 2, "repeat": 3}


def candidate(bits, kept=None):
    n = len(SPACE.sites)
    sizes = SPACE.sizes if kept is None else np.asarray(kept, np.int32)
    widths = np.full(n, bits, np.int32)
    return Candidate(
        Policy(sizes, SPACE.whole.datatypes, widths, widths), SPACE, CANDIDATES.smaller
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("table")


@pytest.mark.parametrize("bits", [32, 8])
def test_kernels_belong_to_the_layers_whose_weights_they_read(bits):
    small = candidate(bits).small
    g, params = small.integer(X[:1])
    bundle = deploy(g, (params, X[:1]))
    paths = [jax.tree_util.keystr(p) for p, _ in jax.tree.leaves_with_path(small.params)]
    calls = kernel_calls(bundle, SPACE.names, paths)
    kernels = {call.kernel for call in calls if not call.kernel.startswith("reshape")}  # views
    assert kernels == {o.name for o in bundle.profile(**FEW)}
    layers = [call.layer for call in calls]
    assert layers == sorted(layers)
    assert set(layers) == set(range(len(SPACE.sites)))


def test_times_are_split_by_kernels():
    """Two calls of one kernel have half of its time each; sums are the time that was given."""

    class Call:
        def __init__(self, kernel, layer):
            self.kernel, self.layer = kernel, layer

    profile = [OperatorTime("a", 2.0, 6.0, 0.6), OperatorTime("b", 1.0, 4.0, 0.4)]
    calls = [Call("a", 0), Call("b", 0), Call("a", 1)]
    assert _split([profile], calls, 2, 20.0) == pytest.approx([14.0, 6.0])


def test_what_is_known_is_not_measured_again(folder):
    latency = table_latency(X[:1], folder=folder, **FEW)
    seconds = latency(candidate(32))
    assert 0 < seconds < 1
    assert latency.fills == 1
    assert latency(candidate(32)) == seconds
    assert latency.fills == 1
    again = table_latency(X[:1], folder=folder, **FEW)
    assert again(candidate(32)) == pytest.approx(seconds)
    assert again.fills == 0
    with pytest.raises(CheckpointError, match="nodes"):
        table_latency(X[:1], folder=folder, nodes=(4,), **FEW)(candidate(32))


def test_between_nodes_lies_what_is_interpolated():
    latency = table_latency(X[:1], nodes=(2,), **FEW)
    low, high = ([2] * len(SPACE.groups), SPACE.sizes)
    middle = (np.asarray(low) + high) // 2
    cells = latency._begin(SPACE)
    for sizes in (low, high, middle):  # cells as if they had been measured
        for own in cells.shares(candidate(8, sizes).policy):
            assert sum(share.weight for share in own) == pytest.approx(1)
            for share in own:
                latency._known[share.cell] = [float(sum(share.cell.channels) + 1)]
    found = latency.layers(candidate(8, middle))
    wanted = [sum(int(middle[g]) for g in groups) + 1 for groups in cells.groups]
    assert found == pytest.approx(wanted)
    assert latency.fills == 0


def test_designs_hold_what_is_missing():
    cells = Cells.of(SPACE, (2,), "host")
    shares = cells.shares(candidate(8, [3] * len(SPACE.groups)).policy)
    wanted = [share.cell for own in shares for share in own]
    policy, held = cells.design(candidate(8).policy, wanted)
    assert set(held) & set(wanted)
    assert set(np.asarray(policy.kept).tolist()) <= {2, *SPACE.sizes.tolist()}
    assert (policy.weights == 8).all()


def test_lost_boards():
    with pytest.raises(LatencyError, match=r"127\.0\.0\.1:9"):
        table_latency(X[:1], board="rpc://127.0.0.1:9", **FEW)(candidate(32))


@pytest.mark.skipif(shutil.which("llvm-mca") is None, reason="llvm-mca is not installed")
def test_a_model_counts_cycles():
    """An A72 adds four products of floats in a cycle, and eight of bytes."""
    cycles = modelled_latency(X[:1], target="cortex-a72")
    macs = SPACE.macs(SPACE.whole)[:2].sum()  # the last layer is too small for vectors
    whole = cycles(candidate(32))
    assert whole > macs / 4
    assert cycles(candidate(8)) > macs / 8
    assert cycles(candidate(32, [max(n // 2, 1) for n in SPACE.sizes])) < whole
