"""Judges candidates: latency, accuracy, reward, sensitivity."""

from jaxeff.search.evaluation._accelerators import DataflowPipeline, SystolicArray
from jaxeff.search.evaluation._candidates import Candidates, Small
from jaxeff.search.evaluation._latency import Candidate, Latency, LatencyError, bit_operations
from jaxeff.search.evaluation._reward import Absolute, Exponential, OneSided, Reward
from jaxeff.search.evaluation._sensitivity import CompressionSensitivity, sensitivity

__all__ = [
    "Absolute",
    "Candidate",
    "Candidates",
    "CompressionSensitivity",
    "DataflowPipeline",
    "Exponential",
    "Latency",
    "LatencyError",
    "OneSided",
    "Reward",
    "Small",
    "SystolicArray",
    "bit_operations",
    "sensitivity",
]
