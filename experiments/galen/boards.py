"""Candidates that three boards measure at once, over those of one board, where boards are slow.

    python -m experiments.galen.boards

Boards are RPC servers on this machine, a process each. Every call on them takes a stated delay
more: it stands for a board that is slower than its host, which then waits and is free for others.
It is no measurement of any board, and boards share the host's cores here. Candidates are compiled
beforehand, since the host compiles one after the other however many boards there are. A delay of
0 is the same without the stand-in.
"""

import argparse
import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jaxeff_export.boards
import numpy as np
from jaxeff_export import Bundle
from jaxeff_export.boards import RpcBoard
from jaxeff_export.latency import MeasuredLatency, compiled

from jaxeff.nn import small_classifier
from jaxeff.search import Actions, Candidate, Candidates, FewBitLayers, SearchSpace

SERVER = Path(jaxeff_export.boards.__file__).with_name("_device_server.py")
FIRST_PORT, PORTS = 21000, 100
NUMBER, REPEAT = 2, 3
CALLS = 1 + NUMBER * REPEAT
"""Of a library that is loaded: one to warm up, and those that are timed."""


class SlowBoard(RpcBoard):
    """A board that is busy for longer than its calls take here."""

    def __init__(self, port: int, delay: float) -> None:
        super().__init__("127.0.0.1", port)
        self._delay = delay

    def load(self, library: Path) -> Any:
        """Loads a library, which is timed once then, and waits as long as the calls take more."""
        time.sleep(self._delay * CALLS)
        return super().load(library)


class Compiled(MeasuredLatency):
    """A latency of candidates that are compiled, and boards that know the whole model."""

    def __init__(self, bundles: dict[str, Bundle], whole: Bundle, boards: list[SlowBoard]) -> None:
        super().__init__((), "host", boards, NUMBER, REPEAT, None)
        self._whole = whole
        for turns in self._turns:
            turns.start(whole, 1.0)

        def look_up(candidate: Candidate, policy: Any) -> Bundle:
            return bundles[str(policy.plain())]

        self._compile: Any = look_up


@contextlib.contextmanager
def servers(count: int) -> Iterator[list[int]]:
    """Ports of RPC servers, a process each."""
    with contextlib.ExitStack() as stack:
        ports = []
        for i in range(count):
            first = FIRST_PORT + PORTS * i
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, str(SERVER), str(first), str(first + PORTS)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            )
            assert process.stdout is not None
            ports.append(int(process.stdout.readline().split()[-1]))
        yield ports


def candidates(count: int) -> tuple[list[Candidate], dict[str, Bundle], Bundle]:
    """Candidates, their libraries, and that of the whole model."""
    f, params, (x, y) = small_classifier(32)
    space = SearchSpace.read(f, params, x[:1], few_bit_layers=FewBitLayers(inputs=1, outputs=1))
    made = Candidates(f, params, (x, y), (x, y), space, steps=0, batch_size=32)
    actions = Actions(round_to=1)
    found = [
        Candidate(jax.tree.map(np.asarray, actions.policy(space, one)), space, made.smaller)
        for one in (jnp.full((len(space.sites), 3), i / count) for i in range(count))
    ]
    bundles = {
        str(one.policy.plain()): compiled(one, one.policy, (x[:1],), "host") for one in found
    }
    whole = Candidate(space.whole, space, made.smaller)
    return found, bundles, compiled(whole, space.whole, (x[:1],), "host")


def measured(
    ports: Sequence[int],
    delay: float,
    many: Sequence[Candidate],
    bundles: dict[str, Bundle],
    whole: Bundle,
) -> float:
    """Seconds that measuring all candidates takes."""
    with contextlib.ExitStack() as stack:
        boards = [stack.enter_context(SlowBoard(port, delay)) for port in ports]
        latency = Compiled(bundles, whole, boards)
        start = time.perf_counter()
        for found in latency.measure_many(many):
            if isinstance(found, Exception):
                raise found
        return time.perf_counter() - start


def main() -> None:
    """Measures with one board and with several, in turns, and prints the ratio."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--boards", type=int, default=3)
    parser.add_argument("--candidates", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--delays", type=float, nargs="+", default=[0.0, 20.0, 80.0], help="in ms")
    asked = parser.parse_args()
    many, bundles, whole = candidates(asked.candidates)
    with servers(asked.boards) as ports:
        for delay in asked.delays:
            ratios = []
            for _ in range(asked.rounds):
                one, several = (
                    measured(some, delay / 1000, many, bundles, whole)
                    for some in (ports[:1], ports)
                )
                ratios.append(one / several)
                print(
                    f"{delay:g} ms a call: {len(many) / one:.3f} candidates a second on one board, "
                    f"{len(many) / several:.3f} on {len(ports)}: {one / several:.2f} times",
                    flush=True,
                )
            print(f"{delay:g} ms a call: median {np.median(ratios):.2f} times", flush=True)


if __name__ == "__main__":
    main()
