"""What is trained, for how long, and under which noise it is tested.

Three sizes, as in `experiments.hardening`: `FAST` on digits, `DEFAULT` for two processor cores,
`FULL` as the source trained (arXiv 2503.16183). Every row of the results names its size.
"""

from dataclasses import dataclass
from typing import Any

from experiments.hardening.recipe import Family, Setting, Size
from jaxeff.hardening import ALPHA, THETA_PER_SIGMA

LEVELS = (0.1, 0.3, 0.5, 0.7, 0.9, 1.1, 1.3, 1.5, 1.7, 1.9, 2.1, 2.4, 2.7, 3.0)
"""Noise of the source's evaluation."""
SHORT_LEVELS = (0.1, 0.3, 0.5, 0.7, 0.9, 1.1, 1.3, 1.5)
SHORT_RAMP = 0.3
"""Share of a short training during which the noise grows; the source's is a quarter."""
PUBLISHED_THETAS = {
    0.1: 0.05, 0.3: 0.05, 0.5: 0.25, 0.7: 0.35, 0.9: 0.35, 1.1: 0.45,
    1.3: 0.65, 1.5: 0.65, 1.7: 0.95, 1.9: 0.75, 2.1: 0.85,
}  # fmt: skip
"""The spread that the source chose for each training level."""


@dataclass(frozen=True)
class Study:
    """A size and what is trained at it.

    Attributes:
        size: How long everything is trained.
        network: The network of the study.
        families: Its trainings.
    """

    size: Size
    network: str
    families: tuple[Family, ...]


def families(
    network: str,
    sigmas: tuple[float, ...],
    centres: tuple[float, ...],
    ratios: tuple[float, ...],
    alphas: tuple[float, ...],
    alpha_centres: tuple[float, ...],
    rhos: tuple[float, ...],
    bits: tuple[int, ...],
    **training: Any,
) -> tuple[Family, ...]:
    """Everything that is trained.

    Args:
        network: Which.
        sigmas: Levels of noisy training, whose best make the ideal.
        centres: Nominal levels of VANT, all among `sigmas`.
        ratios: Its spreads theta, relative to the level, with the published alpha.
        alphas: Its calibrations, with the rule's theta.
        alpha_centres: Nominal levels for them, and for the normal form of the distribution.
        rhos: Radii of adaptive SAM.
        bits: Bit widths of quantization-aware training.
        **training: Further fields of the families.
    """
    spread = [Setting(s, round(r * s, 6), ALPHA) for s in centres for r in ratios]
    rule = [Setting(s, round(THETA_PER_SIGMA * s, 6), ALPHA) for s in alpha_centres]
    calibrated = [setting._replace(alpha=a) for setting in rule for a in alphas]
    noise = tuple(Setting(sigma=s) for s in sigmas)
    return (
        Family("none", network, (Setting(),), **training),
        Family("noise", network, noise, noisy=True, **training),
        Family("vant", network, (*spread, *calibrated), noisy=True, **training),
        Family("vant-normal", network, tuple(rule), noisy=True, form="normal", **training),
        *(Family("qat", network, (Setting(),), "dynamic", b, **training) for b in bits),
        *(Family("sam", network, (Setting(),), rho=rho, **training) for rho in rhos),
    )


def fast() -> Study:
    """A minute or two."""
    network = "lenet5-bn"
    size = Size("fast", "digits", 1437, 360, 8, (0.1, 0.3, 0.6, 1.0), 32, rate=2e-3)
    plan = families(
        network, (0.3, 0.6, 1.0), (0.3, 1.0), (THETA_PER_SIGMA,), (), (0.3,), (0.5,), (4,),
        ramp=SHORT_RAMP,
    )  # fmt: skip
    return Study(size, network, plan)


def default(network: str) -> Study:
    """What two processor cores train in about half an hour: LeNet-5 for the source's ResNet-18.

    Its noise is weaker than the source's, since so is the network: at 1.5 little is left of the
    accuracy of LeNet-5.
    """
    size = Size("default", "cifar-10", 20_000, 2000, 3, SHORT_LEVELS, batch_size=32, rate=2e-3)
    plan = families(
        network, (0.1, 0.3, 0.5, 0.9, 1.3), (0.1, 0.5, 0.9, 1.3), (0.2, THETA_PER_SIGMA, 0.8),
        (0.2, 1.0), (0.5,), (0.05, 0.5), (8, 4), ramp=SHORT_RAMP,
    )  # fmt: skip
    return Study(size, network, plan)


def full(network: str) -> Study:
    """The source's configuration."""
    size = Size("full", "cifar-10", 50_000, 10_000, 400, LEVELS, decay=1e-4, seeds=3, repeats=5)
    plan = families(
        network, LEVELS, tuple(PUBLISHED_THETAS), (0.1, 0.2, 0.3, THETA_PER_SIGMA, 0.5, 0.6, 0.8),
        (0.2, 0.7, 1.0), (0.5, 1.3, 2.1), (0.05, 0.1, 0.5, 1.5, 2.5, 5.0), (8, 4), ramp=0.25,
    )  # fmt: skip
    return Study(size, network, plan)


def choose(fast_size: bool, full_size: bool, network: str | None = None) -> Study:
    """The study at one of the three sizes, of the size's own network if None is given."""
    if fast_size:
        return fast()
    return full(network or "resnet18") if full_size else default(network or "lenet5-bn")
