"""Finds the channels that must be removed together, from the program alone."""

from jaxeff.pruning.dependencies._channels import Channels, channels, leaf_path, read_channels
from jaxeff.pruning.dependencies._dimensions import (
    Axis,
    AxisProduct,
    Concatenation,
    Dimension,
    dimensions,
    is_held,
    kept,
    membership,
    resolve,
)
from jaxeff.pruning.dependencies._errors import UNKNOWN, PlanError, remedy
from jaxeff.pruning.dependencies._groups import Group, Member
from jaxeff.pruning.dependencies._labels import Axes, ChannelReader, Labels, call_axes
from jaxeff.pruning.dependencies._rules import RULES
from jaxeff.pruning.dependencies._statistics import (
    KEEP,
    ZEROS,
    Crossed,
    CrossedWarning,
    check_crossed,
    counts_zeros,
    warn_of_crossed,
)

__all__ = [
    "KEEP",
    "RULES",
    "UNKNOWN",
    "ZEROS",
    "Axes",
    "Axis",
    "AxisProduct",
    "ChannelReader",
    "Channels",
    "Concatenation",
    "Crossed",
    "CrossedWarning",
    "Dimension",
    "Group",
    "Labels",
    "Member",
    "PlanError",
    "call_axes",
    "channels",
    "check_crossed",
    "counts_zeros",
    "dimensions",
    "is_held",
    "kept",
    "leaf_path",
    "membership",
    "read_channels",
    "remedy",
    "resolve",
    "warn_of_crossed",
]
