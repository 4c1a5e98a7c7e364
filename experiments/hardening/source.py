"""What Klein's thesis reports on CIFAR-10 (tables 6.2 and 6.3)."""

from typing import NamedTuple


class Reported(NamedTuple):
    """A network's peak accuracy in percent and its midpoint noise level."""

    peak: float
    mu: float


# Klein's thesis, table 6.2: network, bits, scaling; a constant scale by its number.
TABLE: dict[tuple[str, int, str | float], Reported] = {
    ("vgg11", 32, "none"): Reported(87.7, 0.154),
    ("vgg11", 8, "dynamic"): Reported(87.2, 0.024),
    ("vgg11", 8, 0.5): Reported(84.3, 0.145),
    ("vgg11", 8, 1.0): Reported(82.2, 0.2),
    ("vgg11", 8, 2.0): Reported(76.8, 0.222),
    ("vgg11", 8, 3.0): Reported(10.0, 0.013),
    ("vgg11", 4, "dynamic"): Reported(86.5, 0.031),
    ("vgg11", 4, 0.5): Reported(84.5, 0.12),
    ("vgg11", 4, 1.0): Reported(82.6, 0.177),
    ("vgg11", 4, 2.0): Reported(78.3, 0.23),
    ("vgg11", 4, 3.0): Reported(10.0, 0.010),
    ("resnet18", 32, "none"): Reported(87.0, 0.495),
    ("resnet18", 8, "dynamic"): Reported(87.3, 0.452),
    ("resnet18", 8, 0.5): Reported(87.1, 0.526),
    ("resnet18", 8, 1.0): Reported(87.0, 0.557),
    ("resnet18", 8, 4.0): Reported(86.5, 0.577),
    ("resnet18", 8, 8.0): Reported(85.7, 0.625),
    ("resnet18", 8, 10.0): Reported(10.0, 0.05),
    ("resnet18", 4, "dynamic"): Reported(86.8, 0.281),
    ("resnet18", 4, 0.5): Reported(86.5, 0.492),
    ("resnet18", 4, 1.0): Reported(86.7, 0.605),
    ("resnet18", 4, 4.0): Reported(86.5, 0.657),
    ("resnet18", 4, 8.0): Reported(86.5, 0.665),
    ("resnet18", 4, 10.0): Reported(10.0, 0.005),
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
