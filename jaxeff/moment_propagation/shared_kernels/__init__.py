"""Noise of kernels that all positions share, up to the pooling that doesn't average it away."""

from jaxeff.moment_propagation.shared_kernels._layouts import (
    PositionContraction as PositionContraction,
)
from jaxeff.moment_propagation.shared_kernels._layouts import Taps as Taps
from jaxeff.moment_propagation.shared_kernels._layouts import Windows as Windows
from jaxeff.moment_propagation.shared_kernels._layouts import canonical as canonical
from jaxeff.moment_propagation.shared_kernels._layouts import (
    split_at_contraction as split_at_contraction,
)
from jaxeff.moment_propagation.shared_kernels._pass import steps_apart as steps_apart
from jaxeff.moment_propagation.shared_kernels._pass import with_shared_noise as with_shared_noise
