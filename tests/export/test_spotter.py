"""The command `spotter`: its parts against what they claim, and the whole way once, with tones."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from c_programs import require
from command_line import call, refused
from jaxeff_export.cli import _spotter as spotter

from jaxeff import Gaussian, uncertainty


def test_sets_without_a_logarithm_are_those_of_lac():
    keys = jax.random.split(jax.random.key(0))
    logits = jax.random.normal(keys[0], (500, 6)) * 3
    truth = jax.random.categorical(keys[1], logits)
    for coverage in (0.5, 0.9):
        sets = [
            method.region(
                logits[250:],
                uncertainty.conformalize(logits[:250], truth[:250], method, coverage).threshold,
            )
            for method in (spotter._Probable(), uncertainty.LAC())
        ]
        # The scores rise with each other, so that the thresholds are the same example's.
        np.testing.assert_array_equal(*sets)
    assert not spotter._Probable().region(logits, 0.05).any(1).all()  # some are empty


def test_weights_of_a_byte_are_near_the_posterior():
    weights = Gaussian(*jnp.abs(jax.random.normal(jax.random.key(0), (2, 30, 4))))
    decoded = spotter._decoded(spotter._coded(weights))
    np.testing.assert_allclose(decoded.mean, weights.mean, atol=float(weights.mean.max()) / 254)
    std = jnp.sqrt(weights.var)
    np.testing.assert_allclose(jnp.sqrt(decoded.var), std, atol=float(std.max()) / 253)


def test_a_word_is_called_once_in_a_second():
    said = np.full(100, spotter.NOBODY)
    said[10:20], said[22:30], said[60:70] = 3, 3, 1
    assert spotter.calls_of(said).tolist() == [10, 60]


def test_what_is_no_word_or_no_microcontroller_is_a_line(tmp_path):
    assert refused(call("spotter", tmp_path), "of two words or more, found none")
    assert refused(call("spotter", "--target", "host"), "host is no microcontroller")


@pytest.mark.slow
@pytest.mark.seconds(60)
def test_from_tones_to_a_page(tmp_path):
    require("arm-none-eabi-gcc", "qemu-system-arm")
    result = call(
        "spotter", "--epochs", "12", "--width", "16", "--blocks", "2", "--bits", "4",
        "--listened", "2", "--output", tmp_path / "out",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    of = json.loads((tmp_path / "out" / "report.json").read_text())["sections"]["spotter"]
    assert of["steps"] == of["same"] > 40
    assert of["accuracy"] > 0.4  # by chance an eighth
    # 320 recordings of the same kind as the 320 held out: four standard errors of both.
    assert abs(of["coverage"] - 0.9) < 4 * np.sqrt(0.09 * 2 / 320)
    # Where the truth is told the last third, in noise, is covered as asked: the bound of
    # `online_conformal` over 106 recordings, with scores from 0 to 1.
    assert of["online_last"] > 0.9 - (1 + 2 * 0.05) / (0.05 * 106)
    assert of["online_last"] >= of["fixed_last"]
    assert of["flash"] < 32_000
    assert of["ram"] < 10_000
    assert "emulated steps decide as JAX does" in (tmp_path / "out" / "report.html").read_text()
    assert (tmp_path / "out" / "library" / "spotter.h").exists()
