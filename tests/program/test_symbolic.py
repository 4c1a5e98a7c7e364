import jax
import jax.numpy as jnp
import pytest

from jaxeff.program.ir import axes, signature
from jaxeff.program.reading import UNKNOWN, Constant, known_number
from jaxeff.program.reading._expression import SymbolicReader


class Doubled(SymbolicReader):
    """A domain with one rule: symbols are how often a sum was doubled."""

    def __init__(self):
        self.rules = {jax.lax.add_p: lambda eqn, a, b: a + b}


def read(f, *symbols, shape=(3,)):
    avals = [jax.ShapeDtypeStruct(shape, jnp.float32)] * len(symbols)
    return Doubled().body(jax.make_jaxpr(f)(*avals), symbols)


def double(x):
    return x + x


@jax.custom_jvp
def custom(x):
    return jax.jit(double)(x)


custom.defjvp(lambda primals, tangents: (custom(*primals), 2 * tangents[0]))


def test_a_reader_goes_through_calls_derivatives_and_what_changes_nothing():
    def f(x):
        return custom(jax.lax.stop_gradient(jax.ad_checkpoint.checkpoint_name(double(x), "tag")))

    assert read(jax.jit(f), 1) == [4]


def test_what_has_no_rule_is_unknown_and_so_is_what_follows():
    assert read(lambda x: (double(jnp.sin(x)), double(x)), 1) == [UNKNOWN, 2]


def test_constants_are_evaluated_and_a_known_condition_decides():
    def f(x):
        count = jnp.asarray(3) - 1
        return jnp.where(count > 0, x, jnp.nan), jnp.arange(3.0)

    chosen, array = read(f, 7)
    assert chosen == 7
    assert isinstance(array, Constant)
    assert array.number is None
    assert array.array.tolist() == [0, 1, 2]


def test_a_known_number_follows_views_and_pointwise_functions():
    (product,) = jax.make_jaxpr(lambda x, y: x * y)(2.0, 4.0).jaxpr.eqns
    (broadcast,) = jax.make_jaxpr(lambda x: jax.lax.broadcast(x, (3,)))(8.0).jaxpr.eqns
    (total,) = jax.make_jaxpr(jnp.sum)(jnp.ones(3)).jaxpr.eqns
    assert known_number(product, [2.0, 4.0]) == 8
    assert known_number(product, [2.0, None]) is None
    assert known_number(broadcast, [8.0]) == 8
    assert known_number(total, [8.0]) is None
    for view in (jnp.transpose, lambda x: x[1:], lambda x: x[:, ::-1], lambda x: x.reshape(12)):
        (eqn,) = jax.make_jaxpr(view)(jnp.ones((3, 4))).jaxpr.eqns
        assert known_number(eqn, [8.0]) == 8


MOVES = {
    "transpose": (lambda x: x.T, (1, 0)),
    "a new axis": (lambda x: x[:, None], (0, None, 1)),
    "squeezed": (lambda x: jnp.squeeze(x[:, None], 1), (0, 1)),
    "broadcast": (lambda x: jnp.broadcast_to(x, (5, 3, 4)), (None, 0, 1)),
    "ones come and go": (lambda x: x.reshape(1, 3, 1, 4), (None, 0, None, 1)),
    "joined": (lambda x: x.reshape(12), None),
    "a function of entries": (jnp.sin, (0, 1)),
    "a sum": (lambda x: jax.lax.reduce_sum_p.bind(x, axes=(0,), out_sharding=None), (1,)),
    "a part": (lambda x: x[1:], None),
}


@pytest.mark.parametrize("name", MOVES)
def test_axes_are_followed(name):
    f, expected = MOVES[name]
    followed = (0, 1)
    for eqn in jax.make_jaxpr(f)(jnp.zeros((3, 4))).jaxpr.eqns:
        if followed is not None:
            followed = axes.followed(signature(eqn), followed)
    assert followed == expected


def test_axes_of_pointwise_results():
    assert axes.united((0, None), (None, 1)) == (0, 1)
    assert not axes.crosses((0, None), (0, 1))
    assert axes.crosses((1, 0), (0, 1))
    assert axes.crosses((0, None), (0, 0))
