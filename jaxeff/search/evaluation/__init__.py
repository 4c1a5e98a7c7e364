"""Judges candidates: latency, accuracy, reward, sensitivity."""

from jaxeff.search.evaluation._accelerators import DataflowPipeline, SystolicArray
from jaxeff.search.evaluation._candidates import Candidates, Metrics, Small
from jaxeff.search.evaluation._latency import Candidate, Latency, LatencyError, bit_operations
from jaxeff.search.evaluation._reward import Absolute, Exponential, OneSided, Reward, Worth
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
    "Metrics",
    "OneSided",
    "Reward",
    "Small",
    "SystolicArray",
    "Worth",
    "bit_operations",
    "sensitivity",
]
