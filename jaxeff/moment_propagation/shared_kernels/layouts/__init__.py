"""Axes of the examples, of positions and of channels, and layers that act on these apart."""

from jaxeff.moment_propagation.shared_kernels.layouts._channels import (
    ChannelGroups,
    chosen_channels,
    shared_parameters,
    with_channels_joined,
)
from jaxeff.moment_propagation.shared_kernels.layouts._contraction import (
    PositionContraction,
    convolved_layout,
    over_taps,
    split,
)
from jaxeff.moment_propagation.shared_kernels.layouts._layout import (
    BATCH,
    CHANNEL,
    FIRST_PLACE,
    canonical,
    depends,
    follow,
    is_sum,
    keeps_entries,
    only_moves,
    pooled,
    positions,
    restored,
    takes_extremum,
)

__all__ = [
    "BATCH",
    "CHANNEL",
    "FIRST_PLACE",
    "ChannelGroups",
    "PositionContraction",
    "canonical",
    "chosen_channels",
    "convolved_layout",
    "depends",
    "follow",
    "is_sum",
    "keeps_entries",
    "only_moves",
    "over_taps",
    "pooled",
    "positions",
    "restored",
    "shared_parameters",
    "split",
    "takes_extremum",
    "with_channels_joined",
]
