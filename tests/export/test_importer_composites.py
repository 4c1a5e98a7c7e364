"""Composites that `jaxeff.moments` puts into an artifact, as the importer hands them on."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from importer_oracle import run
from jaxeff_export import Artifact, export
from jaxeff_export.importer import import_stablehlo
from tvm import relax

from jaxeff.moment_propagation import Gaussian, moments

WEIGHT = Gaussian(
    jax.random.normal(jax.random.key(0), (4, 3)), jnp.linspace(0.1, 1, 12).reshape(4, 3)
)
X = jax.random.normal(jax.random.key(1), (2, 4))


def pooled(params, x):
    return nnx.max_pool(jax.nn.relu(x + params), (2, 2), (2, 2))


def dense(params, x):
    return jnp.tanh(x) @ params


@pytest.mark.slow
def test_a_saved_artifact_hands_its_layers_to_an_operator_library():
    artifact = Artifact.from_bytes(
        export(moments(dense, method="diagonal"), (WEIGHT, X)).to_bytes()
    )
    expected = moments(dense, method="diagonal")(WEIGHT, X)
    calls = []

    def split(bb, x, mean, var, **attributes):
        calls.append(([tuple(map(int, t.ty.shape)) for t in (x, mean, var)], attributes))
        square = bb.emit(relax.op.multiply(x, x))
        return [bb.emit(relax.op.matmul(a, b)) for a, b in ((x, mean), (square, var))]

    leaves = jax.tree.leaves((WEIGHT, X))
    for composites in ({}, {"jaxeff.pfp_dense": split}):
        got = run(import_stablehlo(artifact.stablehlo, composites=composites), *leaves)
        np.testing.assert_allclose(got[0], expected.mean, rtol=1e-5)
        np.testing.assert_allclose(got[1], expected.var, rtol=1e-5)
    attributes = {"input": "deterministic", "weight": "variance", "bias": "none"}
    assert calls == [([(2, 4), (4, 3), (4, 3)], attributes)]


def test_attributes_arrive_as_numbers():
    calls = {}

    def pool(bb, mean, var, **attributes):
        calls["pool"] = attributes
        return [
            bb.emit(relax.op.strided_slice(t, [1, 2], [0, 0], [4, 4], [2, 2])) for t in (mean, var)
        ]

    def relu(bb, mean, var, **attributes):
        calls["relu"] = attributes
        return [mean, var]

    posterior = Gaussian(jnp.zeros((1, 4, 4, 2)), jnp.ones((1, 4, 4, 2)))
    artifact = export(moments(pooled, method="diagonal"), (posterior, jnp.ones((1, 4, 4, 2))))
    operators = {"jaxeff.pfp_max_pool": pool, "jaxeff.pfp_relu": relu}
    import_stablehlo(artifact.stablehlo, composites=operators)
    window = {"size": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": [0] * 8}
    assert calls == {"pool": window, "relu": {}}
