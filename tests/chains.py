"""Dense layers as pure functions of their parameters, for the tests of several rooms."""

import jax


def chain(params, x):
    hidden = jax.nn.relu(x @ params["fc1"]["kernel"])
    hidden = jax.nn.relu(hidden @ params["fc2"]["kernel"])
    return hidden @ params["fc3"]["kernel"]


def chain_parameters(shapes, scales=(1.0, 1.0, 1.0)):
    keys = jax.random.split(jax.random.key(2), 3)
    return {
        f"fc{i + 1}": {"kernel": scales[i] * jax.random.normal(keys[i], shapes[i])}
        for i in range(3)
    }


def two_layers(params, x):
    with jax.numpy_rank_promotion("allow"):
        hidden = jax.nn.relu(x @ params["fc1"]["kernel"] + params["fc1"]["bias"])
        return hidden @ params["fc2"]["kernel"] + params["fc2"]["bias"]
