"""Estimates latencies from machine code: instructions, caches, and a model of the processor."""

from jaxeff_export.bundle.machine_model._modelling import SIMILAR_CORES, LoopModel, model_library

__all__ = ["SIMILAR_CORES", "LoopModel", "model_library"]
