"""What a field may hold is said once, by its type."""

import dataclasses
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff import core


@core.register_setting
class Example(core.Setting):
    sigma: core.NonNegative
    scale: core.Positive = 1.0
    share: Annotated[float | None, core.Number(above=0, high=1)] = None
    device: Annotated[int, core.Number(0, integer=True)] = 0
    times: Annotated[int, core.Count(1, 8)] = core.static(1)
    order: Annotated[str, core.Choice("first", "last")] = core.static("first")
    strict: bool = core.static(False)
    anything: object = core.static(None)


@pytest.mark.parametrize(
    ("field", "value", "error", "message"),
    [
        ("sigma", -1, ValueError, "sigma must be at least 0, but is -1"),
        ("sigma", jnp.array([0.0, np.nan]), ValueError, "sigma must be at least 0, but is nan"),
        ("sigma", np.inf, ValueError, "but is inf"),
        ("sigma", None, TypeError, "sigma must be a number or an array, not None"),
        ("sigma", True, TypeError, "sigma must be a number"),
        ("scale", 0, ValueError, "scale must be positive, but is 0"),
        ("share", 0.0, ValueError, "share must be positive and at most 1, but is 0"),
        ("share", 1.5, ValueError, "at most 1, but is 1.5"),
        ("device", 0.5, TypeError, "device must be an integer, not 0.5"),
        ("times", 0, ValueError, "times must be between 1 and 8, but is 0"),
        ("times", 9, ValueError, "but is 9"),
        ("times", 2.0, TypeError, "times must be an integer, not 2.0"),
        ("times", True, TypeError, "times must be an integer, not True"),
        ("strict", 1, TypeError, "strict must be True or False, not 1"),
        ("strict", None, TypeError, "strict must be True or False, not None"),
        ("order", "middle", ValueError, "order must be one of 'first', 'last', not 'middle'"),
    ],
)
def test_a_field_is_held_to_its_type(field, value, error, message):
    with pytest.raises(error, match=rf"Example\.{message}|{message}"):
        Example(**{"sigma": 1.0, field: value})


def test_what_fits_passes():
    given = Example(jnp.zeros(3), share=1.0, device=np.int32(2), times=np.int64(8), anything=[])
    assert given.share == 1
    assert Example(0.0).share is None


def test_traced_numbers_pass_and_rebuilding_checks_nothing():
    assert jax.jit(lambda sigma: Example(sigma).sigma)(-1.0) == -1
    assert jax.tree.map(lambda leaf: -leaf, Example(1.0)).sigma == -1


def test_traced_counts_are_refused():
    with pytest.raises(TypeError, match="times must be an integer"):
        jax.jit(lambda times: Example(1.0, times=times).sigma)(2)


def test_arguments_are_checked_by_the_same_rules():
    core.check_number("rate", np.inf, above=0, finite=False)
    core.check_count("epochs", 3)
    with pytest.raises(ValueError, match="rate must be below 1, but is 1"):
        core.check_number("rate", 1, below=1)
    with pytest.raises(ValueError, match="epochs must be at least 1, but is 0"):
        core.check_count("epochs", 0)


def test_a_setting_is_a_frozen_dataclass_with_options_of_its_own_where_it_says_so():
    @core.register_setting
    class Longer(Example):  # its base is a dataclass, it isn't yet
        length: float = 2.0

    @core.register_setting
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Named(core.Setting):
        sigma: core.NonNegative

    assert jax.tree.leaves(Longer(1.0, length=3.0)) == [1.0, 1.0, 0, 3.0]
    for setting in (Longer(1.0), Named(sigma=1.0)):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setting.sigma = 2.0
    with pytest.raises(TypeError, match="positional"):
        Named(1.0)
