"""The reference networks written out by hand, over whatever a layer is to be.

Each function is the forward pass of the network of that name in `jaxeff.nn`, with its parameter
names, spelled in operations on layers: those of an ONNX graph (`onnx_graph`), or of any transform
(`experiments.beyond.transforms.handwritten`, whose `Plain` lists them).
"""

from typing import Any


def mlp(layers: Any, params: Any, state: Any, x: Any) -> Any:
    """The MLP with dense layers `fc1` to `fc3`."""
    del state
    x = layers.relu(layers.dense(params["fc1"], x))
    x = layers.relu(layers.dense(params["fc2"], x))
    return layers.dense(params["fc3"], x)


def lenet5(layers: Any, params: Any, state: Any, x: Any) -> Any:
    """LeNet-5 with max pooling, `conv1` padded to keep its size."""
    del state
    x = layers.relu_max_pool(layers.conv(params["conv1"], x, 1, "SAME"), 2, 2, 0)
    x = layers.relu_max_pool(layers.conv(params["conv2"], x, 1, "VALID"), 2, 2, 0)
    x = layers.flatten(x)
    x = layers.relu(layers.dense(params["fc1"], x))
    x = layers.relu(layers.dense(params["fc2"], x))
    return layers.dense(params["fc3"], x)


def resnet18(layers: Any, params: Any, state: Any, x: Any) -> Any:
    """ResNet-18 with batch norm, or its first stages; the first kernel's size tells the stem."""
    imagenet = params["conv1"]["kernel"].shape[0] == 7
    x = layers.conv(params["conv1"], x, *((2, _pad(3)) if imagenet else (1, _pad(1))))
    x = layers.batch_norm(params["bn1"], state["bn1"], x)
    x = layers.relu_max_pool(x, 3, 2, 1) if imagenet else layers.relu(x)
    for name in sorted(name for name in params if name.startswith("stage")):
        for block in ("0", "1"):
            stride = 2 if name != "stage1" and block == "0" else 1
            x = _block(layers, params[name][block], state[name][block], x, stride)
    return layers.dense(params["fc"], layers.mean(x))


def _block(layers: Any, params: Any, state: Any, x: Any, stride: int) -> Any:
    y = layers.conv(params["conv1"], x, stride, _pad(1))
    y = layers.relu(layers.batch_norm(params["bn1"], state["bn1"], y))
    y = layers.conv(params["conv2"], y, 1, _pad(1))
    y = layers.batch_norm(params["bn2"], state["bn2"], y)
    if "shortcut" in params:
        x = layers.conv(params["shortcut"], x, stride, _pad(0))
        x = layers.batch_norm(params["bn_shortcut"], state["bn_shortcut"], x)
    return layers.relu(layers.add(x, y))


def _pad(width: int) -> list[tuple[int, int]]:
    return [(width, width), (width, width)]
