"""Lifting: what depends on parameters alone is computed apart, and the two parts make the whole."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from importer_oracle import assert_close, export, run
from jaxeff_export.compiler.passes import lift_parameters
from jaxeff_export.importer import import_stablehlo

W = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
B = np.array([0.5, -2.0, 1.5], np.float32)
X = np.linspace(-2, 1, 20, dtype=np.float32).reshape(5, 4)


def lifted(function, parameters, *inputs):
    """Both parts, checked against XLA together; the arrays that ``main`` takes first."""
    exported = export(function, *parameters, *inputs, keep_unused=True)
    parts = lift_parameters(import_stablehlo(exported), len(parameters))
    derived = run(parts.derive, *parameters) if parts.derive else []
    operands = [[*parameters, *derived][index] for index in parts.operands]
    results = run(parts.main, *operands, *inputs)
    expected = jax.tree.leaves(jax.jit(function)(*parameters, *inputs))
    for ours, theirs in zip(results, expected, strict=True):
        assert_close(ours, np.asarray(theirs), atol=1e-6)
    return parts, operands


def kernels(module):
    return [name.name_hint for name in module.get_global_vars() if name.name_hint != "main"]


def test_whole_subgraphs_are_lifted_and_unused_parameters_dropped():
    parts, operands = lifted(lambda w, v, b, x: x @ (w.T * w.T + v.T).T + b, (W, W + 3, B), X)
    assert kernels(parts.derive)
    assert [array.shape for array in operands] == [(3,), (4, 3)]
    np.testing.assert_allclose(operands[-1], W * W + W + 3, rtol=1e-6)


def test_what_takes_no_parameter_and_what_takes_data_stays():
    parts, operands = lifted(lambda w, x: x @ w + jnp.cumsum(x, axis=1)[:, :3] * 2.0, (W,), X)
    assert parts.derive is None
    assert operands == [W]


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (lambda b, x: jnp.cumsum(jnp.broadcast_to(jnp.exp(b), (5, 3)), 0) + x[:, :3], [(3,)]),
        (lambda b, x: jnp.sum(jnp.cumsum(jnp.broadcast_to(b, (9, 3)), 0), 0) + x[:, :3], [(3,)]),
        (lambda w, x: jnp.cumsum(w.reshape(2, 6), 0) + x[:2, :1], [(2, 6)]),
        (lambda w, x: jnp.flip(w.reshape(12), 0).reshape(2, 6) * x[:2, :1], [(12,)]),
    ],
)
def test_only_what_stays_small_is_kept(function, shapes):
    parameter = W if shapes[0] in ((2, 6), (12,)) else B
    _, operands = lifted(function, (parameter,), X)
    assert [array.shape for array in operands] == shapes


def test_results_may_be_parameters_or_derived_from_them():
    lifted(lambda w, x: (w, jnp.tanh(w), x), (W,), X)
    lifted(lambda w, x: jnp.tanh(w), (W,), X)
    parts, operands = lifted(lambda w: w, (W,))
    assert parts.derive is None
    assert operands == [W]


def test_what_is_computed_of_parameters_twice_is_kept_once():
    def f(w, v, x):
        for _ in range(3):
            x = jnp.tanh(x @ (jnp.flip(w, 0) * 2.0)) @ jnp.flip(v, 1).T
        return x

    # Of two parameters of one shape: those of the one are not those of the other.
    _, operands = lifted(f, (W, W + 3), X)
    assert [array.shape for array in operands] == [(4, 3), (3, 4)]
