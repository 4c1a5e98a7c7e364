"""Galen: channels and bits of every layer, found by searchers that are told measured latencies.

    python -m experiments.galen

1. the thesis' three agents (pruning, quantization, both) at two shares of the latency;
2. the joint agent without sensitivities;
3. at the same budget of episodes: uniform, random, greedy, knapsack, evolution, and one method
   after the other.

What a search found is trained on, compiled in integer codes and measured. Every search and every
result is kept when it is done: a run that was killed goes on. `--only joint` selects searchers.

Source: Klein's thesis, chapter 4; Krieger et al., arXiv 2212.07818.
"""

from dataclasses import dataclass

from experiments.galen import findings, recipe, searching
from experiments.harness import Kept, Row, Run, Study, choose


@dataclass(frozen=True)
class Task:
    """What is kept once it is done."""

    part: str  # "float", "search" or "final"
    searcher: str = ""  # its name
    target: float = 0.0  # share of the latency
    seed: int = 0  # of the search

    def __str__(self) -> str:
        return f"{self.part} {self.searcher} {self.target:g} {self.seed}"


def run(run: Run[recipe.Settings]) -> list[Row]:
    """Every search of a seed and what it found, before the next seed."""
    settings = run.settings
    names = choose(settings.only, recipe.NAMES, "searcher")
    tasks = [Task("float")]
    for seed in range(settings.seeds):
        for target in settings.targets:
            for name in names:
                tasks.append(Task("search", name, target, seed))
                if seed < settings.finals and name in settings.finished:
                    tasks.append(Task("final", name, target, seed))
    work = searching.Workshop(run)

    def make(task: Task) -> list[Row]:
        if task.part == "float":
            return work.whole()
        if task.part == "search":
            return [work.search(task.searcher, task.target, task.seed)]
        (row,) = run.keep(Task("search", task.searcher, task.target, task.seed), list)
        return [work.final(row)]

    return run.each(tasks, make)


STUDY = Study(
    "galen", __doc__, recipe.SIZES, (Kept(run),), findings.CLAIMS, findings.PLOTS, findings.TABLES,
    findings.DIFFERENCES,
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
