"""The thesis' two tables, and what still differs between its set-up and ours."""

from typing import NamedTuple


class Sine(NamedTuple):
    """A row of Klein's thesis, table 7.1: NUTS on the noisy sine."""

    mse_prediction: float
    mse_aleatoric: float
    euc: float
    auroc: float


class Moons(NamedTuple):
    """A row of Klein's thesis, table 7.2: two moons; accuracies in percent."""

    accuracy_svi: float
    accuracy_nuts: float
    auroc_svi: float
    auroc_nuts: float


SINE = {
    "Cosine": Sine(0.0137, 0.0057, 0.6988, 0.9985),
    "Sine": Sine(0.0132, 0.0052, 0.7196, 0.9977),
    "Softshrink": Sine(0.0051, 0.0028, 0.8724, 0.9962),
    "Hardtanh": Sine(0.0066, 0.0025, 0.0978, 0.9948),
    "PReLU": Sine(0.0049, 0.0028, 0.4673, 0.9935),
    "Tanh": Sine(0.0034, 0.0026, 0.2070, 0.9934),
    "Hardswish": Sine(0.0054, 0.0024, 0.0583, 0.9913),
    "Hardsigmoid": Sine(0.0037, 0.0035, 0.7305, 0.9906),
    "Softsign": Sine(0.0042, 0.0029, 0.4661, 0.9900),
    "LeakyReLU": Sine(0.0050, 0.0026, 0.4801, 0.9894),
    "Mish": Sine(0.0050, 0.0029, 0.4195, 0.9886),
    "SELU": Sine(0.0053, 0.0024, 0.6794, 0.9868),
    "GELU": Sine(0.0029, 0.0027, 0.0443, 0.9854),
    "LogSigmoid": Sine(0.0024, 0.0031, 0.9264, 0.9840),
    "LeakyReLU0.5": Sine(0.0051, 0.0026, 0.4470, 0.9832),
    "ReLU": Sine(0.0044, 0.0027, 0.3516, 0.9827),
    "Sigmoid": Sine(0.0018, 0.0030, 0.4697, 0.9823),
    "Softplus": Sine(0.0028, 0.0026, 0.8258, 0.9799),
    "ELU": Sine(0.0040, 0.0028, 0.3459, 0.9761),
    "CELU": Sine(0.0040, 0.0028, 0.3459, 0.9761),
    "SiLU": Sine(0.0028, 0.0027, 0.3141, 0.9704),
    "RReLU": Sine(0.0351, 0.0205, 0.9284, 0.9497),
    "LogSoftmax": Sine(1.2008, 0.5332, 0.4433, 0.9212),
    "Tanhshrink": Sine(0.0032, 0.0029, 0.9689, 0.9135),
    "Softmin": Sine(0.2612, 0.1641, 0.1442, 0.7065),
    "Softmax": Sine(0.3499, 0.2152, 0.1170, 0.6440),
    "Hardshrink": Sine(0.2690, 0.3039, 0.0339, 0.4760),
}

MOONS = {
    "Sine": Moons(87.73, 86.13, 0.7427, 0.9663),
    "LeakyReLU0.5": Moons(87.80, 90.07, 0.5198, 0.8666),
    "SiLU": Moons(88.80, 90.00, 0.7706, 0.8646),
    "Hardswish": Moons(89.67, 90.00, 0.7602, 0.8631),
    "ReLU": Moons(88.27, 89.67, 0.7205, 0.8551),
    "Softplus": Moons(88.27, 90.07, 0.8680, 0.8361),
    "Softshrink": Moons(89.93, 89.87, 0.5763, 0.7698),
    "Tanhshrink": Moons(90.00, 89.93, 0.5514, 0.7606),
    "Tanh": Moons(88.93, 90.20, 0.4605, 0.7498),
    "Sigmoid": Moons(89.40, 90.47, 0.4953, 0.4757),
}
"""Its representative ten, which are also the ten of its noisy-sine figure."""
