"""What is trained, for how long, and under which noise it is tested.

Three sizes: the embedded digits, what two processor cores train in about 40 minutes, and as the
thesis trained (arXiv 2501.14531), which an accelerator runs with the same code. Every row of the
results names its size.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple

import numpy as np

from experiments.harness import ADDED, SELECTS, SIZELESS, Count, Refused
from experiments.recipes import Training

SCALES = (0.5, 1.0, 2.0, 3.0)
"""Constant scales of activations (Klein's thesis, table 6.2: VGG-11's)."""
RESNET_SCALES = (0.5, 1.0, 4.0, 8.0, 10.0)
BITS = (8, 4)


class Setting(NamedTuple):
    """What differs between the trainings of one program."""

    sigma: float = 0.0  # nominal noise level
    theta: float = 0.0  # spread of the level over images (VANT); 0 for plain noisy training
    alpha: float = 1.0  # calibration of its centre (VANT); 1 for plain noisy training
    scale: float = 1.0  # constant scale of the activations, where they have one


@dataclass(frozen=True)
class Family:
    """Trainings that one compiled program runs."""

    method: str  # what its curves are called
    network: str  # "lenet5", "lenet5-bn" (with batch norm), "vgg11" or "resnet18"
    settings: tuple[Setting, ...]  # one training each, for every seed
    # of quantized activations: "none" (not quantized), "constant" or "dynamic"
    scaling: str = "none"
    bits: int = 32  # bit width where quantized
    noisy: bool = False  # whether noise is injected in training
    rho: float = 0.0  # radius of adaptive SAM; 0 for none
    ramp: float = 0.0  # share of the training during which the noise grows
    form: str = "half_normal"  # distribution of varying levels, see `jaxeff.hardening.vant`
    rate: float | None = None  # learning rate; the size's if None

    @property
    def name(self) -> str:
        """The family in one word."""
        quantized = "" if self.scaling == "none" else f"-{self.bits}bit-{self.scaling}"
        sharpness = f"-rho{self.rho:g}" if self.rho else ""
        return f"{self.network}-{self.method}{quantized}{sharpness}"


@dataclass(frozen=True)
class Trainings(Training):
    """What is trained, how long, and how it is tested."""

    data: str  # the data set
    images: Count  # training images
    test_images: Count  # images behind every point of a curve
    levels: tuple[float, ...]  # evaluation noise; with the levels that are trained at
    epochs: Count  # passes over the training images (the thesis: 500)
    families: tuple[Family, ...]  # the trainings
    decay: float = 0.0  # weight decay, as a gradient of Adam's
    seeds: Count = 1  # trainings of each setting
    repeats: Count = 1  # draws of the noise per test image
    # share of the channels (and hidden units) of VGG-11 and ResNet-18 that are kept
    width: float = 1.0

    def __post_init__(self) -> None:
        trained = {s.sigma for f in self.families if f.noisy for s in f.settings}
        if missing := sorted(trained - set(self.levels)):
            raise Refused(f"levels must hold those trained at; {missing} are missing")


@dataclass(frozen=True)
class Settings(Trainings):
    """As said, of several networks."""

    # networks to run, of those that the size has; all of them if none is given
    networks: Annotated[tuple[str, ...], SELECTS] = ()
    # methods to run: none, noise, qat, qat+noise; all of them if none is given
    methods: Annotated[tuple[str, ...], SELECTS] = ()
    # constant scales of noisy training in few bits, at each of its levels (the thesis: 1 to 3)
    combined_scales: Annotated[tuple[float, ...], SIZELESS, ADDED] = (1.0,)

    def chosen(self) -> list[Family]:
        """The trainings that are asked for.

        Raises:
            Refused: There is none.
        """
        families = list(self.families)
        for field, wanted in (("network", self.networks), ("method", self.methods)):
            there = ", ".join(sorted({getattr(f, field) for f in families}))
            families = [f for f in families if not wanted or getattr(f, field) in wanted]
            if not families:
                raise Refused(f"no {field} {' or '.join(wanted)}: there are {there}")
        return [
            replace(f, settings=tuple(
                s._replace(scale=scale) for scale in self.combined_scales for s in f.settings
            )) if f.noisy and f.scaling == "constant" else f
            for f in families
        ]  # fmt: skip


RAMP = 0.5
"""Share of a short training during which its noise grows."""


def families(
    network: str,  # which
    sigmas: tuple[float, ...],  # levels of noisy training
    scales: tuple[float, ...],  # constant scales
    bits: tuple[int, ...] = BITS,  # bit widths of the table
    combined_bits: tuple[int, ...] = (4,),  # bit widths under noisy training
    combined_sigmas: tuple[float, ...] | None = None,  # its levels; `sigmas` if None
    qat_rate: float | None = None,  # learning rate of quantization-aware training
    **training: Any,  # further fields of the families
) -> tuple[Family, ...]:
    """Everything that is trained of one network."""

    def quantized(method: str, b: int, kind: str, *settings: Setting, **own: Any) -> Family:
        return Family(method, network, settings, kind, b, **own)  # type: ignore[arg-type]

    noise = tuple(Setting(sigma=s) for s in sigmas)
    under = tuple(Setting(sigma=s) for s in combined_sigmas or sigmas)
    by_scale = tuple(Setting(scale=s) for s in scales)
    return (
        Family("none", network, (Setting(),), **training),
        Family("noise", network, noise, noisy=True, **training),
        *(
            quantized("qat", b, kind, *settings, **training | {"rate": qat_rate})
            for b in bits
            for kind, settings in (("dynamic", (Setting(),)), ("constant", by_scale))
        ),
        *(
            quantized("qat+noise", b, kind, *under, noisy=True, **training)
            for b in combined_bits
            for kind in ("dynamic", "constant")
        ),
    )


def levels(low: float, high: float, count: int, *trained: float) -> tuple[float, ...]:
    """No noise, levels with even ratios, and those that networks are trained at."""
    even = np.geomspace(low, high, count).round(4).tolist()
    return tuple(sorted({0.0, *even, *trained}))


_FAST = (0.5, 1.0, 2.0, 4.0)
_DEFAULT = (0.3, 0.6, 1.2, 2.4, 4.8)
_FULL = tuple(np.geomspace(0.1, 10.0, 13).round(3).tolist())
SIZES = {
    "fast": Settings(
        "digits", 1437, 360, levels(0.05, 10.0, 7, *_FAST), 12,
        families("lenet5", _FAST, (1.0,), (4,), (), ramp=RAMP), batch_size=32, rate=2e-3,
    ),
    # Fewer epochs won't do: with 4, networks trained at high levels have hardly learned yet, and
    # noisy training appears to raise the midpoint 4.6 times instead of 7.6 times.
    # The larger two are for an accelerator: `--networks vgg11 --batch-size 128 --rate 1e-3`; two
    # processor cores train them at `--width .125`.
    "default": Settings(
        "cifar-10", 20_000, 2000, levels(0.03, 10.0, 11, *_DEFAULT), 12,
        (
            *families("lenet5", _DEFAULT, SCALES, combined_sigmas=_DEFAULT[1:], ramp=RAMP),
            *families("vgg11", _DEFAULT, SCALES, combined_bits=(), qat_rate=1e-4, ramp=RAMP),
            *families(
                "resnet18", _DEFAULT, RESNET_SCALES, combined_sigmas=_DEFAULT[1:], ramp=RAMP
            ),
        ),
        batch_size=32, rate=2e-3, networks=("lenet5",),
    ),
    "full": Settings(
        "cifar-10", 50_000, 10_000, levels(0.01, 10.0, 16, *_FULL), 500,
        (
            *families("lenet5", _FULL, SCALES, combined_bits=BITS),
            *families("vgg11", _FULL, SCALES, combined_bits=(), qat_rate=1e-4, ramp=0.25),
            *families(
                "resnet18", _FULL, RESNET_SCALES, combined_bits=BITS, qat_rate=1e-2, rate=1e-2
            ),
        ),
        seeds=3, repeats=5, batch_size=128, rate=1e-3,
    ),
}  # fmt: skip
