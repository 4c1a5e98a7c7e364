"""Runs as a script: reads a StableHLO portable artifact on stdin, writes its text to stdout.

This is a process of its own because MLIR's bytecode reader can corrupt memory on damaged input.
It must not import jaxeff_export (or JAX), so that it starts in a fraction of a second. Its one
argument is how many seconds of a processor it may take.
"""

import resource
import sys

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import chlo, sdy, stablehlo


def main() -> int:
    """Converts stdin to stdout; returns the exit status."""
    # Of its own time, so that a busy machine doesn't make a sound artifact a damaged one.
    limit = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 1))
    context = ir.Context()
    for dialect in (stablehlo, chlo, sdy):
        dialect.register_dialect(context)
    context.allow_unregistered_dialects = True
    try:
        module = stablehlo.deserialize_portable_artifact(context, sys.stdin.buffer.read())
    except ValueError:
        return 1  # MLIR has written the reason to stderr
    sys.stdout.write(str(module.operation.get_asm(enable_debug_info=True)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
