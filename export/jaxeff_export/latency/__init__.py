"""Latencies of candidates for `jaxeff.search`: measured, looked up by layer, or modelled."""

from jaxeff_export.latency._measured import (
    AlternatingTimer,
    MeasuredLatency,
    compiled,
    measured_latency,
)
from jaxeff_export.latency._modelled import channel_multiple, modelled_latency
from jaxeff_export.latency._table import table_latency

__all__ = [
    "AlternatingTimer",
    "MeasuredLatency",
    "channel_multiple",
    "compiled",
    "measured_latency",
    "modelled_latency",
    "table_latency",
]
