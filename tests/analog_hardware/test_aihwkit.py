"""The crossbars of aihwkit 1.1, its bound and noise management off, where it is installed.

Its tile in PyTorch is asked, not the compiled one, which wants the PyTorch that it was built with.
"""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff.analog_hardware import Crossbar, analog

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torch = pytest.importorskip("torch", exc_type=ImportError)
    configs = pytest.importorskip("aihwkit.simulator.configs", exc_type=ImportError)
    from aihwkit.nn import AnalogLinear
    from aihwkit.simulator.parameters.enums import BoundManagementType, NoiseManagementType

GAIN = 0.004


def theirs(inputs, weights):
    """Counts of tiles of 128 by 256: 5-bit inputs, weights as they are, converters of 256 steps."""
    config = configs.TorchInferenceRPUConfig()
    config.mapping.max_input_size, config.mapping.max_output_size = 128, 256
    config.mapping.weight_scaling_omega = 0.0
    count = 1 / (63 * GAIN)
    forward = config.forward
    forward.bound_management = BoundManagementType.NONE
    forward.noise_management = NoiseManagementType.NONE
    forward.inp_bound, forward.inp_res = 31.0, 1 / 62
    forward.out_bound, forward.out_res = 128 * count, 1 / 256
    forward.out_noise = forward.w_noise = 0.0
    rows, columns = weights.shape
    layer = AnalogLinear(rows, columns, bias=False, rpu_config=config).eval()
    layer.set_weights(torch.tensor(weights.T / 63, dtype=torch.float32))
    with torch.no_grad():
        return layer(torch.tensor(inputs, dtype=torch.float32)).numpy() / count


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("rows", "columns"), [(1, 1), (7, 300), (64, 20), (127, 255), (128, 256), (256, 40), (384, 10)]
)
def test_a_tile_is_within_one_step_of_the_converter(rows, columns):
    rng = np.random.default_rng(rows)
    weights = rng.integers(-63, 64, (rows, columns))
    inputs = rng.integers(0, 32, (32, rows))
    array = Crossbar(input_step=1.0, weight_step=1.0, gain=GAIN)
    params = {"fc": {"kernel": jnp.asarray(weights, jnp.float32)}}
    ours = analog(lambda p, x: x @ p["fc"]["kernel"], {"fc": array})(
        jax.random.key(0), params, jnp.asarray(inputs, jnp.float32)
    )
    tiles = -(-rows // 128)
    # Theirs rounds where ours truncates, once per tile.
    apart = np.asarray(ours) * GAIN - theirs(inputs, weights)
    assert np.abs(apart).max() <= tiles + 1e-3
    assert np.abs(ours).max() * GAIN > 20 or rows == 1
