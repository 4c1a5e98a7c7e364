"""What is compressed, by which searchers, on which budget."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from experiments.classifiers import Classifier
from experiments.harness import SELECTS, SIZELESS, Count, Least
from experiments.recipes import Training
from jaxeff import search

AGENTS = ("pruning", "quantization", "joint")
"""The thesis', all by reinforcement learning."""
BLIND = "joint, blind"
"""The joint agent without sensitivities."""
OTHERS = (
    "uniform", "random", "greedy", "knapsack", "evolution", "pruning first", "quantization first",
)  # fmt: skip
"""Joint actions too."""
NAMES = (*AGENTS, BLIND, *OTHERS)


@dataclass(frozen=True)
class Settings(Training):
    """What is measured."""

    subject: Classifier  # the network
    # shares of the whole model's latency that are asked for
    targets: tuple[float, ...] = (0.3, 0.2)
    seeds: Count = 5  # searches by each searcher
    warm_up: Annotated[int, Least(0)] = 10  # those of them in which the agent acts at random
    episodes: Count = 30  # of every search
    # seeds of searches whose results are trained, compiled and measured
    finals: Annotated[int, Least(0)] = 1
    updates: Count = 20  # of the agent, per episode
    steps: Annotated[int, Least(0)] = 16  # of every candidate's training; 0 takes an epoch
    step_images: Count = 32  # images per step of it
    decay: float = 0.9  # of the agent's noise, per episode
    finished: tuple[str, ...] = (*AGENTS, "greedy", "knapsack")  # searchers whose results are
    validation: Count = 512  # images that candidates are measured on, none of the others
    images: Count = 32  # that sensitivities are measured on
    # what a search is told: a table of kernels' times here, cycles by the static model of a
    # processor, or bit operations, which are no time
    latency: Annotated[Literal["table", "modelled", "operations"], SIZELESS] = "table"
    processor: Annotated[str, SIZELESS] = "cortex-a72"  # that is modelled, as targets are called
    retrain_rate: float = 0.02  # of a candidate's training by momentum of .9, decayed by a cosine
    final_images: Count = 10_000  # of the final training
    epochs: Annotated[int, Least(0)] = 1  # of the final training; 0 leaves it away
    round_to: Count = 16  # channels of joint searches are multiples of it
    # numbers of channels that the table of kernels holds
    nodes: tuple[Count, ...] = (4, 8, 12, 16, 32, 48)
    few: Count = 4  # channels of the pruning agent are multiples of it
    inputs: Count = 8  # few bits take multiples of so many input channels
    only: Annotated[tuple[str, ...], SELECTS] = ()  # searchers; all if none is given


def actions_of(settings: Settings, name: str) -> search.Actions:
    """What the actions of a searcher mean."""
    if name == "pruning":
        return search.Actions("pruning", settings.few)
    of = "quantization" if name == "quantization" else "both"
    return search.Actions(of, settings.round_to)


def searcher_of(settings: Settings, name: str) -> Any:
    """What proposes a searcher's actions."""
    agent = search.DDPG(warm_up=settings.warm_up, updates=settings.updates, decay=settings.decay)
    half = search.DDPG(
        warm_up=settings.warm_up // 2, updates=settings.updates, decay=settings.decay
    )
    others: dict[str, Any] = {
        "uniform": search.UniformSearch(), "random": search.RandomSearch(),
        "greedy": search.Greedy(), "knapsack": search.Knapsack(),
        "evolution": search.Evolution(population=max(4, min(10, settings.episodes // 4))),
        "pruning first": search.Sequential("pruning", half),
        "quantization first": search.Sequential("quantization", half),
    }  # fmt: skip
    return others.get(name, agent)


SIZES = {
    "fast": Settings(
        Classifier("lenet5", "digits", 1200, 12, 297, 1), targets=(0.3,), seeds=1, episodes=8,
        warm_up=3, updates=5, steps=2, batch_size=32, validation=200, images=32,
        final_images=1000, few=2,
        round_to=2, nodes=(2,), inputs=2, finished=AGENTS, latency="operations",
    ),
    "default": Settings(Classifier("resnet8", "cifar-10", 20_000, 12, 2000, 1), seeds=3),
    "full": Settings(
        Classifier("resnet18", "cifar-10", 40_000, 100, 10_000, 1), episodes=410, updates=1,
        decay=0.95, steps=0, step_images=128, retrain_rate=0.05, batch_size=128,
        validation=10_000, images=256, epochs=30, final_images=40_000, finals=5, round_to=32,
        few=1, nodes=(32, 64, 128, 256), inputs=32,
    ),
}  # fmt: skip
