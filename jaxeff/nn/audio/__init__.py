"""Features of sound as functions that compile into a network: log-mel spectra and cepstra."""

from jaxeff.nn.audio._log_mel import LogMel
from jaxeff.nn.audio._tables import hann, mel_filters

__all__ = ["LogMel", "hann", "mel_filters"]
