"""`ptq` is `calibrate`, `integer` and `convert`."""

import jax
import numpy as np
import pytest

from jaxeff.compression import Int, calibrate, integer, ptq
from jaxeff.nn import small_classifier


@pytest.fixture(scope="module")
def net():
    return small_classifier()


@pytest.mark.parametrize("bits", [8, 4])
def test_one_call_is_the_three(net, bits):
    f, params, (x, _) = net
    g, codes, _ = ptq(f, params, x[:64], bits=bits)
    expected = integer(f, calibrate(f, params, [x[:64]], {"*:linear": Int(bits, 8)}).spec)
    np.testing.assert_array_equal(g(codes, x), expected(expected.convert(params, x[:64]), x))
    agree = (g(codes, x).argmax(-1) == f(params, x).argmax(-1)).mean()
    assert agree > (0.97 if bits == 8 else 0.85)
    assert sum(a.nbytes for a in jax.tree.leaves(codes)) < 0.4 * sum(
        a.nbytes for a in jax.tree.leaves(params)
    )


def test_batches_and_a_spec(net):
    f, params, (x, _) = net
    g, codes, _ = ptq(f, params, [x[:32], x[32:64]], spec={"fc1": Int(8)}, method="mse")
    assert {name.partition("/")[0] for name in codes.arrays} == {"fc1"}
    assert g(codes, x).shape == (len(x), 10)
    with pytest.raises(ValueError, match="there are no batches"):
        ptq(f, params, [])
