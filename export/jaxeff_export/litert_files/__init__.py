"""LiteRT files (`.tflite`): functions as phones and their accelerators take them, and back."""

from jaxeff_export.litert_files._reader import from_litert as from_litert
from jaxeff_export.litert_files._reader import read_litert_model as read_litert_model
from jaxeff_export.litert_files._to_litert import LitertError as LitertError
from jaxeff_export.litert_files._to_litert import LitertFile as LitertFile
from jaxeff_export.litert_files._to_litert import to_litert as to_litert
