"""What Klein's thesis reports on CIFAR-10 (tables 6.2 and 6.3)."""

from typing import NamedTuple


class Reported(NamedTuple):
    """A network's peak accuracy in percent and its midpoint noise level."""

    peak: float
    mu: float


# Klein's thesis, table 6.2: network, bits, scaling; a constant scale by its number.
_CELLS: dict[tuple[str, int], dict[str | float, tuple[float, float]]] = {
    ("vgg11", 32): {"none": (87.7, 0.154)},
    ("vgg11", 8): {
        "dynamic": (87.2, 0.024), 0.5: (84.3, 0.145), 1.0: (82.2, 0.2), 2.0: (76.8, 0.222),
        3.0: (10.0, 0.013),
    },
    ("vgg11", 4): {
        "dynamic": (86.5, 0.031), 0.5: (84.5, 0.12), 1.0: (82.6, 0.177), 2.0: (78.3, 0.23),
        3.0: (10.0, 0.010),
    },
    ("resnet18", 32): {"none": (87.0, 0.495)},
    ("resnet18", 8): {
        "dynamic": (87.3, 0.452), 0.5: (87.1, 0.526), 1.0: (87.0, 0.557), 4.0: (86.5, 0.577),
        8.0: (85.7, 0.625), 10.0: (10.0, 0.05),
    },
    ("resnet18", 4): {
        "dynamic": (86.8, 0.281), 0.5: (86.5, 0.492), 1.0: (86.7, 0.605), 4.0: (86.5, 0.657),
        8.0: (86.5, 0.665), 10.0: (10.0, 0.005),
    },
}  # fmt: skip
TABLE = {
    (network, bits, scaling): Reported(*found)
    for (network, bits), cells in _CELLS.items()
    for scaling, found in cells.items()
}


class Architecture(NamedTuple):
    """A column of the architectures of Klein's thesis, table 6.3."""

    macs_m: float
    parameters_m: float
    slots: int
    peak: float
    mu: float
    mu_noisy: float


ARCHITECTURES = {
    "lenet5": Architecture(0.66, 0.06, 12, 75.0, 0.286, 2.59),
    "vgg11": Architecture(276.56, 132.86, 27, 87.7, 0.154, 2.957),
    "resnet18": Architecture(37.53, 11.69, 33, 86.9, 0.494, 3.023),
}
