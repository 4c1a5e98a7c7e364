"""Lost voltage against Kirchhoff's law solved densely; energy and time of tiles by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff.analog_hardware import Crossbar, Linear, TileCosts, Wires, analog, tile_costs
from jaxeff.nn import small_classifier

KEY = jax.random.key(0)


def ladder(conductances, voltages, resistance):
    """Current at the end of a column, by nodal analysis of its ladder in float64."""
    rows, wire = len(conductances), 1 / resistance
    matrix = np.diag(conductances + 2 * wire) - wire * (np.eye(rows, k=1) + np.eye(rows, k=-1))
    matrix[0, 0] -= wire  # nothing lies behind the first cell
    nodes = np.linalg.solve(matrix, conductances * voltages)
    return wire * nodes[-1]


@pytest.mark.parametrize("resistance", [1e-4, 1e-2, 0.3])
def test_currents_are_those_of_kirchhoffs_law(resistance):
    rng = np.random.default_rng(0)
    weights, inputs = rng.integers(-63, 64, (20, 3)), rng.integers(0, 32, (4, 20))
    model = Wires(resistance=resistance)
    counts = model.counts(jnp.asarray(inputs, jnp.float32), jnp.asarray(weights, jnp.float32), 0.01)
    for p, voltages in enumerate(inputs):
        for c in range(3):
            plus, minus = np.maximum(weights[:, c], 0) / 63, np.maximum(-weights[:, c], 0) / 63
            current = ladder(plus, voltages, resistance) - ladder(minus, voltages, resistance)
            np.testing.assert_allclose(counts[p, c], 0.63 * current, rtol=2e-4, atol=2e-4)


@pytest.mark.slow
def test_without_resistance_an_array_is_linear_and_with_it_less():
    f, params, (x, _) = small_classifier()
    x = x.clip(0)

    def run(model):
        return analog(f, {"fc*:linear": Crossbar(gain=0.004, model=model)})(KEY, params, x)

    np.testing.assert_allclose(run(Wires(resistance=0.0)), run(Linear()), atol=1e-5)
    lost = Wires(resistance=1e-2).effective(jnp.full((50, 1), 63.0))[:, 0]
    assert (jnp.diff(lost) > 0).all()  # cells at the far end give least
    assert lost[-1] < 63
    slope = jax.grad(lambda r: Wires(resistance=r).effective(jnp.full((9, 1), 63.0)).sum())(1e-3)
    assert slope < 0


def test_energy_and_time_by_hand():
    f, params, (x, _) = small_classifier(16)
    array = Crossbar(rows=128, columns=128, input_bits=8, output_bits=8)
    report = tile_costs(f, params, x - x.min(), {"fc1": array})
    (layer,) = report
    kernel = params["fc1"]["kernel"]
    tiles = -(-kernel.shape[0] // 128) * -(-kernel.shape[1] // 128)
    conversions = tiles * 8 * 128
    additions = conversions * (1 - 1 / 8) if tiles == 1 else None
    parts = conversions * 1.67e-12, tiles * 8 * 128 * 3.9e-13, tiles * 8 * 2 * 128**2 * 1.83e-15
    assert tiles == 1
    np.testing.assert_allclose(report.energy, sum(parts) + additions * 1e-13, rtol=1e-6)
    np.testing.assert_allclose(layer.conversions, parts[0] / report.energy, rtol=1e-6)
    # 128 conversions at 1.2 GHz take longer than the 100 ns of a cycle; two converters don't.
    np.testing.assert_allclose(report.latency, 8 * 128 / 1.2e9, rtol=1e-6)
    assert layer.bound == "conversions"
    assert "conversions" in str(report)
    faster = tile_costs(f, params, x - x.min(), {"fc1": array}, TileCosts(converters=2))
    np.testing.assert_allclose(faster.latency, 8e-7, rtol=1e-6)
    assert faster[0].bound == "cycles"
    np.testing.assert_allclose(layer.operations, 2 * kernel.size)


def test_pulses_are_converted_once_and_a_bit_doubles_a_conversion():
    f, params, (x, _) = small_classifier(16)

    def cost(driver=0.0, **options):
        array = Crossbar(rows=128, columns=128, **{"input_bits": 4, "output_bits": 8, **options})
        costs = TileCosts(serial=False, driver=driver, cell=0.0, addition=0.0)
        return tile_costs(f, params, x - x.min(), {"fc1": array}, costs)

    np.testing.assert_allclose(cost().energy, 128 * 1.67e-12, rtol=1e-6)
    np.testing.assert_allclose(cost(output_bits=9).energy, 2 * cost().energy)
    # Vectors that are sent several times are read out once.
    np.testing.assert_allclose(cost(sends=3).energy, cost().energy)
    rows = cost(driver=1e-12).energy - cost().energy
    np.testing.assert_allclose(cost(driver=1e-12, sends=3).energy, cost().energy + 3 * rows)
    np.testing.assert_allclose(cost(sends=3).latency, 45e-7 + 128 / 1.2e9, rtol=1e-6)
    np.testing.assert_allclose(cost(signed=True).energy, 2 * cost().energy)
    np.testing.assert_allclose(cost(signed=True)[0].operations, cost()[0].operations)
    np.testing.assert_allclose(cost().latency, 15e-7 + 128 / 1.2e9, rtol=1e-6)
