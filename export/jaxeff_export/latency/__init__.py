"""Latencies of candidates for `jaxeff.search`: measured, looked up by layer, or modelled."""

from jaxeff_export.latency._channels import channel_multiple
from jaxeff_export.latency._measured import MeasuredLatency, measured_latency
from jaxeff_export.latency._modelled import modelled_latency
from jaxeff_export.latency._table import table_latency
from jaxeff_export.latency._turns import AlternatingTimer, compiled

__all__ = [
    "AlternatingTimer",
    "MeasuredLatency",
    "channel_multiple",
    "compiled",
    "measured_latency",
    "modelled_latency",
    "table_latency",
]
