"""Tiles beside CrossSim, by the formulas that it publishes, written anew here.

CrossSim (Xiao et al., Sandia National Laboratories, github.com/sandialabs/cross-sim) isn't on the
package index. Its formulas are those of its documentation and of its inference manual, section 9.3:
circuits of arrays (`simulator/circuits/array`), digits of weights (`cores/bitsliced_core`), and
converters (`circuits/adc`).
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff.analog_hardware import Crossbar, Wires, analog
from jaxeff.noise import ProgrammedCell

KEY = jax.random.key(0)


def their_column(conductances, voltages, resistance, relaxation=0.3):
    """Current of a column whose wire has a resistance, by relaxed fixed-point iteration.

    Voltages across cells are those of the drivers less what all currents on the way to the end of
    the column lose (array sourced by its inputs, not interleaved, no resistance of the rows).
    Resistances are relative to a cell's least one.
    """
    across = voltages.copy()
    for _ in range(5000):
        # What flows through a segment is all that came before; what a cell loses, all behind it.
        through = np.cumsum(conductances * across)
        lost = np.cumsum(resistance * through[::-1])[::-1]
        error = voltages - lost - across
        if np.abs(error).max() < 1e-10:
            return (conductances * across).sum()
        across += relaxation * error
    raise AssertionError("not converged")


@pytest.mark.parametrize("resistance", [1e-5, 1e-4, 1e-3])
def test_wires_lose_what_crosssims_circuit_loses(resistance):
    rng = np.random.default_rng(0)
    weights, inputs = rng.integers(-63, 64, (64, 3)), rng.integers(0, 32, 64)
    ours = Wires(resistance=resistance).counts(
        jnp.asarray(inputs[None], jnp.float32), jnp.asarray(weights, jnp.float32), 1.0
    )[0]
    # A balanced pair, subtracted at the periphery.
    pairs = (np.maximum(weights, 0) / 63, np.maximum(-weights, 0) / 63)
    plus, minus = (
        np.array([their_column(w, inputs.astype(float), resistance) for w in half.T])
        for half in pairs
    )
    np.testing.assert_allclose(ours / 63, plus - minus, rtol=2e-5, atol=2e-4)
    lost = 1 - plus.sum() / (inputs @ pairs[0]).sum()
    assert lost > 10 * resistance  # so that something was compared


def their_digits(weights, bits, slices):
    """Digits of every slice, the least first, as shares of a conductance with the weight's sign."""
    each = -(-(bits - 1) // slices)  # of a pair of cells, a bit of the width is the sign
    code = np.rint(weights / np.abs(weights).max() * (2 ** (bits - 1) - 1))
    magnitude, base = np.abs(code), 2**each
    digits = [np.floor(magnitude / base**i) % base for i in range(slices)]
    return [digit * np.sign(code) / (base - 1) for digit in digits], base


@pytest.mark.slow
@pytest.mark.parametrize(("bits", "slices"), [(7, 3), (9, 2), (9, 4)])
def test_digits_are_crosssims_and_so_are_their_errors(bits, slices):
    weights = np.asarray(jax.random.normal(KEY, (60, 50)))
    digits, base = their_digits(weights, bits, slices)
    places = [(base - 1) * base**i / (base**slices - 1) for i in range(slices)]
    theirs = sum(p * d for p, d in zip(places, digits, strict=True)) * np.abs(weights).max()
    cells = ProgrammedCell(0.0, states=base, slices=slices)
    np.testing.assert_allclose(cells.perturb(KEY, jnp.asarray(weights)), theirs, atol=1e-5)
    # Every cell of every slice has an error of its own, relative to the largest conductance; a
    # reading adds it with the slice's place. None below zero: cells are away from it by five.
    noisy = ProgrammedCell(0.0, read=0.01, states=base, slices=slices)
    middle = jnp.full((200, 200), 0.5 * (1 + 1 / base)).at[0, 0].set(1.0)
    error = np.asarray(noisy.perturb(KEY, middle) - cells.perturb(KEY, middle))[1:]
    pairs = np.sqrt(sum(p**2 for p in places)) * 0.01
    # The pair's other cell holds nothing, so its reading is half a normal distribution's.
    expected = pairs * np.sqrt(1 + 0.5 - 1 / (2 * np.pi))
    np.testing.assert_allclose(error.std(), expected, rtol=5 / np.sqrt(2 * error.size))


def their_counts(inputs, weights, input_bits, weight_bits, adc_bits):
    """Counts of a balanced core: granular range, sign-magnitude levels, rounded."""
    finest = 2.0**-weight_bits * 2**input_bits / (2**input_bits - 1)
    limit = finest * (2 ** (adc_bits - 1) - 1)
    currents = (inputs / (2**input_bits - 1)) @ (weights / (2 ** (weight_bits - 1) - 1))
    step = 2 * limit / (2**adc_bits - 2)
    return np.rint(np.clip(currents, -limit, limit) / step)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [5, 40, 128])
def test_converters_are_half_a_step_from_crosssims(rows):
    input_bits, weight_bits, adc_bits = 5, 7, 8
    rng = np.random.default_rng(rows)
    weights, inputs = rng.integers(-63, 64, (rows, 20)), rng.integers(0, 32, (50, rows))
    # A count of theirs is 2**-bits of a weight at full drive.
    gain = 2.0 ** (weight_bits - input_bits) / (2 ** (weight_bits - 1) - 1)
    array = Crossbar(input_step=1.0, weight_step=1.0, gain=gain, output_bits=adc_bits)
    params = {"fc": {"kernel": jnp.asarray(weights, jnp.float32)}}
    ours = analog(lambda p, x: x @ p["fc"]["kernel"], {"fc": array})(
        KEY, params, jnp.asarray(inputs, jnp.float32)
    )
    theirs = their_counts(inputs, weights, input_bits, weight_bits, adc_bits)
    counts = np.asarray(ours) * gain
    # Ours truncates: a step below theirs in half of all cases, and one more at the lowest code.
    apart = theirs - counts
    inside = np.abs(theirs) < 127
    np.testing.assert_allclose(apart[inside], np.round(apart[inside]), atol=1e-3)
    assert set(np.round(apart[inside])) <= {0, 1}
    assert (np.round(counts[theirs == 127]) >= 126).all()
    assert (np.round(counts[theirs == -127]) <= -127).all()
    assert inside.sum() > 10
    assert 0.3 < apart[inside].mean() < 0.7
