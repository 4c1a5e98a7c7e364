"""The one table of rules: a row adds a primitive to both passes, and a missing one is named."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxeff.core import primitives as p
from jaxeff.moment_propagation import Gaussian, MomentsError, moments
from jaxeff.moment_propagation.rules import TABLE, Kind, Row
from jaxeff.program.ir import primitives as prim

W = Gaussian(jnp.array([[0.5, -0.2, 0.1], [0.3, 0.8, -0.4]]), jnp.full((2, 3), 0.01))
X = jnp.array([[1.0, 0.5], [-0.3, 2.0]])


def angle(w, x):
    """Two random operands, which examples share: no integral of one."""
    return jnp.arctan2(x[:, :1] * w[0], w[1])


def test_a_row_adds_a_primitive_to_both_passes(monkeypatch):
    reverse = moments(angle, method="linear")(W, X)
    slopes = jax.vmap(jax.jacrev(angle), (None, 0))(W.mean, X[:, None])
    exact = (slopes[:, 0] ** 2 * W.var).sum((-1, -2))
    np.testing.assert_allclose(reverse.var, exact, rtol=1e-5)
    monkeypatch.delitem(TABLE, p.atan2_p)
    with pytest.raises(MomentsError, match=r"'atan2' at site 'params'.*no moment rule"):
        moments(angle, method="diagonal")(W, X)
    # Without a row it may be any function of many entries: derived one example after the other.
    np.testing.assert_allclose(moments(angle, method="linear")(W, X).var, exact, rtol=1e-5)

    def to_first_order(node, y, x):
        size = x.mean**2 + y.mean**2
        var = (x.mean**2 * y.var + y.mean**2 * x.var) / size**2
        return [Gaussian(jnp.arctan2(y.mean, x.mean), var)]

    monkeypatch.setitem(TABLE, p.atan2_p, Row(Kind.POINTWISE, to_first_order))
    np.testing.assert_allclose(moments(angle, method="diagonal")(W, X).var, exact, rtol=1e-5)
    np.testing.assert_allclose(moments(angle, method="linear")(W, X).var, exact, rtol=1e-5)


def until(w, x):
    return lax.while_loop(lambda y: y.sum() < 9, lambda y: y + jnp.exp(w[0]), x[:, :1] * w[0])


def called(w, x):
    shape = jax.ShapeDtypeStruct((2, 3), jnp.float32)
    return jax.pure_callback(np.tanh, shape, x @ w, vmap_method="sequential")


@pytest.mark.parametrize(
    ("f", "words"),
    [
        (until, "primitive 'while' at site 'while'.*no derivative in reverse.*fixed number"),
        (called, "primitive 'pure_callback' at site 'pure_callback'.*no derivative.*custom_vjp"),
    ],
    ids=["loop", "callback"],
)
def test_what_has_no_derivative_is_named(f, words):
    with pytest.raises(MomentsError, match=words):
        moments(f, method="linear")(W, X)


def test_every_pointwise_primitive_has_a_row():
    integers = {
        p.and_p, p.not_p, p.or_p, p.shift_left_p, p.shift_right_arithmetic_p,
        p.shift_right_logical_p, p.xor_p,
    }  # fmt: skip
    assert prim.ELEMENTWISE - integers <= TABLE.keys()
    assert all(TABLE[one].kind is Kind.BILINEAR for one in prim.LINEAR)
