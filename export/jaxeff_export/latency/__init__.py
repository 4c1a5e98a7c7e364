"""Latencies of candidates for `jaxeff.search`: measured, looked up by layer, or modelled."""

from jaxeff_export.latency._measured import AlternatingTimer as AlternatingTimer
from jaxeff_export.latency._measured import MeasuredLatency as MeasuredLatency
from jaxeff_export.latency._measured import compiled as compiled
from jaxeff_export.latency._measured import measured_latency as measured_latency
from jaxeff_export.latency._modelled import channel_multiple as channel_multiple
from jaxeff_export.latency._modelled import modelled_latency as modelled_latency
from jaxeff_export.latency._table import table_latency as table_latency
from jaxeff_export.latency._vela import vela_latency as vela_latency
