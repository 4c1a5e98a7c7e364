"""Networks whose channels depend on each other in known ways, for more than one library.

Each is a table of layers and a function that calls them; `networks` makes them in Flax,
`with_torch` in PyTorch. Layers are called the same in both, so that groups of channels can be
compared by name. Names say whose wiring a network has; widths are small.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

Layer = tuple[Any, ...]
"""What kind it is (`conv`, `linear`, ...), and its sizes."""
IMAGES, SEQUENCES = (1, 16, 16, 3), (1, 6, 10)
INVERTED = ((16, 32, 16), (16, 32, 24), (24, 48, 24))
"""Channels into, in and out of MobileNetV2's blocks."""


class Wiring(NamedTuple):
    """A network."""

    layers: Mapping[str, Layer]  # by name
    # of a library's functions, of the layers and of an input
    forward: Callable[[Any, Any, Any], Any]
    shape: tuple[int, ...] = IMAGES  # of an input, channels last
    keys: int = 4  # attention's keys for four queries


def _mobile_net() -> Wiring:
    """Inverted residuals with depthwise convolutions (MobileNetV2)."""
    layers: dict[str, Layer] = {"stem": ("conv", 3, 16, 3)}
    for i, (inner, hidden, out) in enumerate(INVERTED):
        layers |= {f"expand{i}": ("conv", inner, hidden), f"expand_bn{i}": ("batch_norm", hidden)}
        layers[f"depthwise{i}"] = ("conv", hidden, hidden, 3, hidden)
        layers[f"depthwise_bn{i}"] = ("batch_norm", hidden)
        layers[f"project{i}"] = ("conv", hidden, out)

    def forward(f: Any, net: Any, x: Any) -> Any:
        x = f.relu6(net.stem(x))
        for i, (inner, _, out) in enumerate(INVERTED):
            y = x
            for name in ("expand", "depthwise"):
                y = f.relu6(getattr(net, f"{name}_bn{i}")(getattr(net, f"{name}{i}")(y)))
            y = getattr(net, f"project{i}")(y)
            x = x + y if inner == out else y
        return net.head(f.mean(x))

    return Wiring(layers | {"head": ("linear", 24, 10)}, forward)


def _dense_net() -> Wiring:
    """A block whose layers read all before them, and a transition."""
    layers: dict[str, Layer] = {"stem": ("conv", 3, 16, 3)}
    for i in range(3):
        layers[f"norm{i}"] = ("batch_norm", 16 + 8 * i)
        layers[f"grow{i}"] = ("conv", 16 + 8 * i, 8, 3)
    layers |= {"norm": ("batch_norm", 40), "transition": ("conv", 40, 20)}

    def forward(f: Any, net: Any, x: Any) -> Any:
        x = net.stem(x)
        for i in range(3):
            x = f.join([x, getattr(net, f"grow{i}")(f.relu(getattr(net, f"norm{i}")(x)))])
        return net.head(f.mean(net.transition(f.relu(net.norm(x)))))

    return Wiring(layers | {"head": ("linear", 20, 10)}, forward)


def _u_net(f: Any, net: Any, x: Any) -> Any:
    x = f.relu(net.down(x))
    y = f.relu(net.deep(f.max_pool(x)))
    return net.head(f.relu(net.join(f.join([x, net.up(y)]))))


def _res_next(f: Any, net: Any, x: Any) -> Any:
    x = f.relu(net.stem(x))
    y = f.relu(net.grouped(f.relu(net.reduce(x))))
    return net.head(f.mean(x + net.expand(y)))


def _shuffle_net(f: Any, net: Any, x: Any) -> Any:
    x = f.shuffle(f.relu(net.first(net.stem(x))), 2)
    return net.head(f.mean(f.relu(net.second(x))))


def _vit(keys: int) -> Wiring:
    """Patches, a class token, positions, attention with heads, layer norms."""
    layers: dict[str, Layer] = {
        "patch": ("patches", 3, 32, 4), "token": ("parameter", 1, 1, 32),
        "position": ("parameter", 1, 17, 32), "norm1": ("layer_norm", 32),
        "norm2": ("layer_norm", 32), "query": ("linear", 32, 32), "out": ("linear", 32, 32),
        "key": ("linear", 32, 8 * keys), "value": ("linear", 32, 8 * keys),
        "up": ("linear", 32, 64), "down": ("linear", 64, 32), "norm": ("layer_norm", 32),
        "head": ("linear", 32, 10),
    }  # fmt: skip

    def attended(f: Any, net: Any, x: Any) -> Any:
        b, t, _ = x.shape
        query = net.query(x).reshape(b, t, keys, 4 // keys, -1)
        key, value = (layer(x).reshape(b, t, keys, -1) for layer in (net.key, net.value))
        weights = f.softmax(f.einsum("btngd,bsnd->bngts", query, key) / 8**0.5, -1)
        return f.einsum("bngts,bsnd->btngd", weights, value).reshape(b, t, -1)

    def forward(f: Any, net: Any, x: Any) -> Any:
        x = f.tokens(net, net.patch(x))
        x = x + net.out(attended(f, net, net.norm1(x)))
        x = x + net.down(f.gelu(net.up(net.norm2(x))))
        return net.head(net.norm(x)[:, 0])

    return Wiring(layers, forward, keys=keys)


WIRINGS = {
    "MobileNetV2": _mobile_net(),
    "DenseNet": _dense_net(),
    "U-Net": Wiring(
        {
            "down": ("conv", 3, 16, 3), "deep": ("conv", 16, 32, 3), "up": ("doubled", 32, 16),
            "join": ("conv", 32, 16, 3), "head": ("conv", 16, 2),
        },
        _u_net,
    ),
    "ResNeXt": Wiring(
        {
            "stem": ("conv", 3, 32, 3), "reduce": ("conv", 32, 16),
            "grouped": ("conv", 16, 16, 3, 4), "expand": ("conv", 16, 32),
            "head": ("linear", 32, 10),
        },
        _res_next,
    ),
    "ShuffleNet": Wiring(
        {
            "stem": ("conv", 3, 16, 3), "first": ("conv", 16, 32, 1, 2),
            "second": ("conv", 32, 32, 1, 2), "head": ("linear", 32, 10),
        },
        _shuffle_net,
    ),
    "ViT": _vit(4),
    "grouped queries": _vit(2),
    "LSTM": Wiring(
        {"inner": ("linear", 10, 16), "rnn": ("lstm", 16, 24), "head": ("linear", 24, 4)},
        lambda f, net, x: net.head(f.run(net.rnn, net.inner(x))),
        SEQUENCES,
    ),
}  # fmt: skip
RESIDUAL = "ResNet-18"
"""Besides these, a network that the library has."""
