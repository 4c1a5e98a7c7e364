"""What runs a bundle without JAX: TVM's runtime and NumPy alone.

`load` opens a bundle to be called; `Bundle.load` opens one to be checked, timed and exported, too.
"""

from jaxeff_export.runtime._device_runner import load_library as load_library
from jaxeff_export.runtime._loaded import PROGRAM as PROGRAM
from jaxeff_export.runtime._loaded import BundleError as BundleError
from jaxeff_export.runtime._loaded import LoadedBundle as LoadedBundle
from jaxeff_export.runtime._loaded import load as load
from jaxeff_export.runtime._structures import Description as Description
from jaxeff_export.runtime._structures import SignatureError as SignatureError
from jaxeff_export.runtime._structures import count_leaves as count_leaves
from jaxeff_export.runtime._structures import rebuild as rebuild
from jaxeff_export.runtime._threads import run_on_threads as run_on_threads
