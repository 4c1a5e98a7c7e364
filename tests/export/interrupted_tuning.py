"""A tuning session without processes and clocks; run as a program, it is killed halfway.

The program is killed while it measures its sixth candidate.
"""

import os
import signal
import sys

import jax
import jax.numpy as jnp
from jaxeff_export import export
from jaxeff_export.compiler import bind_parameters, compilation_target, fused_kernels
from jaxeff_export.importer import import_stablehlo
from jaxeff_export.schedules import TuningDatabase
from jaxeff_export.targets import resolve_target
from jaxeff_export.tuning._session import TuningSession
from jaxeff_export.tuning._spaces import select_kernels

TARGET = {**resolve_target("host"), "num-cores": 1}


class Bench:
    """Says how long a schedule takes: the first built (the default one) and the others."""

    reason = "the test says so"

    def __init__(self, first, others=1e-3, dies_at=None):
        self.times = (first, others)
        self.dies_at = dies_at
        self.measured = 0
        self.built = []

    def take(self, kernel):
        """Nothing to prepare."""

    def build(self, schedules):
        traces = [str(schedule.trace) for schedule in schedules]
        self.built += traces
        return traces

    def seconds(self, library):
        self.measured += 1
        if self.measured == self.dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.times[library != self.built[0]]


class Silent:
    """Watches, and says nothing."""

    def begin(self, *_):
        pass

    advance = decide = begin


def small_layer():
    """A function and its arguments."""
    return lambda w, x: jax.nn.relu(x @ w), (jnp.ones((12, 24)), jnp.ones((6, 12)))


def layer():
    """The one kernel of a small dense layer."""
    module = import_stablehlo(export(*small_layer()).stablehlo)
    module = bind_parameters(module, 1, TARGET).main
    (kernel,) = select_kernels(fused_kernels(module, compilation_target(TARGET)), None, [])
    return kernel


def session(folder, bench, trials):
    return TuningSession(TARGET, TuningDatabase(folder), bench, "tiles", trials, Silent())


if __name__ == "__main__":
    # The first measurement is the default schedule's.
    session(sys.argv[1], Bench(first=1e-3, dies_at=7), 8).tune(layer())
