"""LiteRT files (`.tflite`): a function as phones and their accelerators take it."""

from jaxeff_export.litert_files._to_litert import LitertError as LitertError
from jaxeff_export.litert_files._to_litert import LitertFile as LitertFile
from jaxeff_export.litert_files._to_litert import to_litert as to_litert
