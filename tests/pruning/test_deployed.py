"""A pruned network through the exporter: the library computes what JAX does."""

import jax
import numpy as np
import pytest

from jaxeff.pruning import channels, pruned
from tests.pruning.networks import NETWORKS
from tests.pruning.test_exactness import drawn

pytest.importorskip("tvm")
pytestmark = pytest.mark.promotes("dtype", "rank")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shufflenet1", "grouped queries"])
def test_a_pruned_network_becomes_a_library(name, tmp_path):
    import jaxeff_export

    network = NETWORKS[name]()
    plan = drawn(channels(network.f, network.params, *network.args), 0)
    g, small = pruned(network.f, plan), plan.shrink(network.params)
    bundle = jaxeff_export.deploy(g, (small, *network.args), path=tmp_path / "pruned")
    bundle.check()
    out = bundle.run(*network.args)
    np.testing.assert_allclose(out, jax.jit(g)(small, *network.args), rtol=1e-4, atol=1e-5)
    whole = jaxeff_export.export(network.f, (network.params, *network.args))
    arrays = [leaf.nbytes for leaf in jax.tree.leaves(network.params)]
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(small)) < 0.7 * sum(arrays)
    assert [spec.name for spec in whole.inputs] == [
        spec.name for spec in jaxeff_export.export(g, (small, *network.args)).inputs
    ]
