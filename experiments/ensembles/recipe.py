"""What is trained, on what, and for how long; every number here is ours unless named."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from experiments.dirty_mnist.recipe import FAST as FAST_DIRTY
from experiments.harness import SELECTS, Count, Least
from experiments.recipes import Selected, Training
from experiments.sines import MARGIN
from jaxeff.dirty_mnist import Recipe
from jaxeff.ensembles import RBF
from jaxeff.nn import ACTIVATIONS

FORMS: dict[str, dict[str, Any]] = {
    "source": {"moves": "members", "kernel": RBF(power=1)},
    "all layers": {"moves": "all", "kernel": RBF()},
}
"""Repulsion in function space: Klein's thesis, section 9.1.3, moves the heads' own parameters, by
the distance itself; ours the layers that they share as well, by its square."""

Part = Literal["sine", "table", "cost"]

Kind = Literal["ambiguous", "other", "patches 16", "patches 8", "patches 4", "shuffled", "noise"]
KINDS: tuple[Kind, ...] = (
    "ambiguous", "other", "patches 16", "patches 8", "patches 4", "shuffled", "noise",
)  # fmt: skip


@dataclass(frozen=True)
class Sine:
    """The noisy sine (Klein's thesis, figure 9.2)."""

    # activation functions, as the thesis' table names them
    activations: tuple[str, ...] = tuple(ACTIVATIONS)
    seeds: Count = 5  # data sets and trainings of each
    hidden: Count = 50  # units of both hidden layers (the thesis')
    steps: Count = 2000  # steps of Adam, each on all examples
    rate: float = 5e-3  # its learning rate, decayed by a cosine
    members: Annotated[int, Least(2)] = 10  # networks of a deep ensemble, and heads (the thesis')
    dropout: float = 0.15  # rate behind both hidden layers (the thesis')
    samples: Annotated[int, Least(2)] = 100  # dropout masks of a prediction
    # strengths of the repulsion of heads, for a likelihood summed over the data; the first is the
    # thesis'
    gammas: tuple[float, ...] = (1000.0, 100.0, 10.0)
    # weight of what keeps log-variances from growing in the gaps (the thesis' number; what it
    # multiplies there is not said)
    lambda_var: float = 0.25
    margin: float = MARGIN  # how far beyond the data predictions are judged
    points: Annotated[int, Least(10)] = 300  # inputs at which they are


@dataclass(frozen=True)
class Settings(Training, Selected):
    """Everything the figures depend on."""

    sine: Sine = Sine()  # the regression
    # the classifier: "mlp" (784-64-32-10), "lenet5", or "resnet18" without batch norm
    network: Literal["mlp", "lenet5", "resnet18"] = "lenet5"
    # how the ambiguous digits are made, and of which clean ones
    data: Recipe = field(default_factory=Recipe)
    ood: str = "fashion-mnist"  # out-of-domain data set of the tests
    # another one: repulsive samples in the place of letters, and strengths are chosen by it. Its
    # images become grey and are cropped
    other: str = "cifar-10"
    clean: Annotated[int, Least(100)] = 20_000  # clean digits to train on
    ambiguous: Annotated[int, Least(10)] = 1000  # ambiguous ones; each counts once for every label
    # digits of each kind that are kept out of the training, for choosing
    held: Annotated[int, Least(10)] = 1000
    tests: Annotated[int, Least(10)] = 5000  # images of each test set at most
    epochs: Count = 4  # passes over the data
    # heads (the thesis'), and networks of the large ensemble
    members: Annotated[int, Least(2)] = 10
    few: Annotated[int, Least(2)] = 5  # networks of the small one (the thesis' DE-5)
    seeds: Annotated[int, Least(2)] = 5  # trainings of the main rows
    some: Count = 5  # trainings of the other rows, at most
    strengths: tuple[float, ...] = (0.3, 1.0, 3.0)  # of repulsion in function space, to choose from
    weight_strength: float = 0.1  # the same in the space of weights
    kinds: tuple[Kind, ...] = KINDS  # repulsive samples that are compared
    repulsive: Annotated[int, Least(2)] = 16  # how many there are in a step
    dropout: float = 0.15  # rate behind dense hidden layers
    bound: float = 3.0  # of spectral norms (DDU's)
    features: Count = 256  # random features of SNGP
    shrinkage: float = 0.01  # of the class covariances of DDU
    # draws of a prediction: masks, or logits of a Gaussian
    samples: Annotated[int, Least(2)] = 30
    rounds: Count = 5  # rounds of the timing
    parts: Annotated[tuple[Part, ...], SELECTS] = ()  # parts to run; all if none is given
    # folder of Dirty-MNIST; the user's cache if unset
    cache: Annotated[Path | None, SELECTS] = None


DEFAULT = Settings()
SIZES = {
    "fast": Settings(
        sine=Sine(
            activations=("SiLU", "SELU", "ReLU"), seeds=2, steps=300, points=60,
            gammas=(1000.0, 10.0),
        ),
        network="mlp", data=FAST_DIRTY.data, ood="digits-ood", other="digits-ood",
        clean=1200, ambiguous=100, held=100, tests=300, epochs=10, batch_size=64,
        members=10, few=5, seeds=2, some=2, strengths=(0.3, 1.0), repulsive=16, features=64,
        samples=10, rounds=3, kinds=("other", "patches 8", "noise"),
    ),
    "default": replace(DEFAULT, seeds=3),
    "full": replace(
        DEFAULT,
        sine=Sine(steps=20_000),
        network="resnet18", clean=58_000, ambiguous=5000, tests=10_000, epochs=50, rate=1e-3,
        batch_size=128, strengths=(0.3, 1.0, 3.0, 10.0), repulsive=64,
        features=1024, samples=100, rounds=15,
    ),
}  # fmt: skip
