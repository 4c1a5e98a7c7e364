"""LiteRT files (`.tflite`): a function as phones and their accelerators take it."""

from jaxeff_export.litert_files._to_litert import LitertError, LitertFile, to_litert

__all__ = ["LitertError", "LitertFile", "to_litert"]
