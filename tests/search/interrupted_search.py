"""A small search with a folder; run as a program, it is killed while it measures an episode.

The program is killed before the sixth measurement: those before are the whole model's, the
strongest policy's and three episodes'.
"""

import os
import signal
import sys

import jax

from jaxeff.nn import small_classifier
from jaxeff.search import DDPG, Actions, bit_operations, search

F, PARAMS, DATA = small_classifier(256)


def run(folder=None, dies_at=None):
    """What was found, and how many candidates were measured for it."""
    measured = 0

    def latency(candidate):
        nonlocal measured
        measured += 1
        if measured == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return bit_operations(candidate)

    searched = search(
        jax.random.key(0), F, PARAMS, DATA, latency=latency, target=0.3,
        agent=DDPG(warm_up=2, batch_size=8), actions=Actions(round_to=4), episodes=6, steps=1,
        batch_size=32, folder=folder, images=32, progress=False,
    )  # fmt: skip
    return searched, measured


if __name__ == "__main__":
    folder, *dies_at = sys.argv[1:]
    _, measured = run(folder, *map(int, dies_at))
    print(measured)
