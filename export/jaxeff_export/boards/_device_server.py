"""Program of the emulated board: TVM's RPC server, which ends when its parent ends.

It is started with the emulated machine's Python, needs nothing but TVM's runtime, and imports
nothing of this package. It prints the port it listens on, then waits for its standard input to
close: however the parent ends, the pipe closes, and the whole process group is killed.

Sharp edge: the server is built from the state object behind ``python -m tvm.exec.rpc_server``
rather than through that command, because the command starts a second interpreter, and under
emulation each one takes five seconds to import TVM.
"""

import multiprocessing
import os
import signal
import sys


def main() -> None:
    """Serves on the first free port of ``argv[1]`` to ``argv[2]`` of the loopback interface."""
    from tvm.rpc.server import PopenRPCServerState

    first, last = int(sys.argv[1]), int(sys.argv[2])
    state = PopenRPCServerState("127.0.0.1", first, last, silent=True)
    print(f"port {state.port}", flush=True)
    # Not sys.stdin.read(): it holds a lock that the server's forked children would wait for.
    while os.read(0, 1024):
        pass
    for session in multiprocessing.active_children():
        session.kill()
        session.join(timeout=2.0)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
