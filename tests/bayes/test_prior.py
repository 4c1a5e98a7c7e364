import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff.bayes import prior_scales

PARAMS = {
    "conv1": {"kernel": jnp.zeros((5, 5, 3, 6)), "bias": jnp.zeros(6)},
    "fc1": {"kernel": jnp.zeros((50, 10)), "bias": jnp.zeros(10)},
}


def test_fan_in():
    assert prior_scales("fan_in", PARAMS) == {
        "conv1/bias": 1.0,
        "conv1/kernel": pytest.approx(np.sqrt(2 / 75)),
        "fc1/bias": 1.0,
        "fc1/kernel": pytest.approx(np.sqrt(2 / 50)),
    }


def test_one_scale_for_all():
    assert set(prior_scales(0.3, PARAMS).values()) == {0.3}


def test_first_match_wins_and_the_rest_is_fan_in():
    scales = prior_scales({"conv1/kernel": 0.5, "*/kernel": 2, "fc1/bias": "fan_in"}, PARAMS)
    assert scales == {"conv1/bias": 1.0, "conv1/kernel": 0.5, "fc1/bias": 1.0, "fc1/kernel": 2.0}


def test_a_pattern_shadowed_by_another_is_no_error():
    assert prior_scales({"*": 1.0, "fc1/*": 2.0}, PARAMS)["fc1/kernel"] == 1.0


def test_pattern_without_a_match():
    with pytest.raises(ValueError, match=r"'fc2/\*' matches no parameter; there are conv1/bias, "):
        prior_scales({"fc2/*": 1.0}, PARAMS)


@pytest.mark.parametrize("bad", [0.0, -1, float("nan"), float("inf"), "unit", [1.0]])
def test_bad_scales(bad):
    with pytest.raises(ValueError, match="prior of fc1/kernel must be a positive"):
        prior_scales({"fc1/kernel": bad}, PARAMS)


def test_none_is_not_random():
    assert prior_scales({"fc1/*": None}, PARAMS)["fc1/kernel"] is None
    with pytest.raises(ValueError, match="leaves no parameter random"):
        prior_scales({"*": None}, PARAMS)
