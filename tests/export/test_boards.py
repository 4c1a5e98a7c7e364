"""Boards: each runs the same bundle to the same result, and fails with one clear error."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import jaxeff_export.boards
import numpy as np
import psutil
import pytest
from jaxeff_export import BoardError, Bundle, BundleError, ToolchainError, deploy, on_boards
from jaxeff_export.boards import (
    EmulatedBoard,
    LocalBoard,
    RpcBoard,
    connecting,
    emulated,
    make_board,
    sysroot,
)
from small_network import inputs, mlp, parameters
from tvm.rpc import Server
from tvm.rpc.tracker import Tracker

SERVER = Path(jaxeff_export.boards.__file__).with_name("device_server.py")


@pytest.fixture(scope="module")
def for_a72(arm_linker, tmp_path_factory):
    path = tmp_path_factory.mktemp("a72") / "mlp"
    deploy(mlp, (parameters(), inputs()), target="cortex-a72", path=path)
    return Bundle.load(path)


@pytest.fixture
def server_process():
    """A TVM RPC server on this machine; yields its process and its port."""
    first = 20000 + 100 * (os.getpid() % 300)
    process = subprocess.Popen(
        [sys.executable, str(SERVER), str(first), str(first + 100)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    with process:
        yield process, int(process.stdout.readline().split()[-1])


@pytest.fixture
def server(server_process):
    """The port of a TVM RPC server on this machine."""
    return server_process[1]


@pytest.fixture
def fleet():
    """A tracker's port and two servers that registered with it as ``pi``."""
    first = 50000 + 50 * (os.getpid() % 300)
    tracker = Tracker("127.0.0.1", first, first + 10, silent=True)
    at = {"tracker_addr": ("127.0.0.1", tracker.port), "custom_addr": "127.0.0.1"}
    ports = {"port": first + 10, "port_end": first + 50}
    servers = [Server("127.0.0.1", key="pi", silent=True, **ports, **at) for _ in range(2)]
    yield tracker.port, servers
    for process in (*servers, tracker):
        process.terminate()


def sessions_of(servers):
    """The processes that serve open sessions."""
    families = [psutil.Process(s.proc._proc.pid).children(recursive=True) for s in servers]
    return [process for family in families for process in family if _alive(process)]


def test_names_of_boards():
    assert isinstance(make_board("local"), LocalBoard)
    assert make_board("rpc://pi:9090").name == "rpc://pi:9090"
    assert make_board("rpc://hub:9190/pi4?session_timeout=60").name == "rpc://hub:9190/pi4"
    assert make_board("emulated").name == "emulated:cortex-a72"
    assert make_board("emulated", cpu="cortex-a53").name == "emulated:cortex-a53"
    assert make_board("emulated", cpu="znver4").name == "emulated:cortex-a72"
    assert make_board("emulated:cortex-a76").name == "emulated:cortex-a76"
    board = LocalBoard()
    assert make_board(board) is board
    for spec, message in [
        ("pi", "unknown board 'pi': use local, emulated"),
        ("rpc://pi", "write rpc://host:port"),
        ("rpc://pi:port", "write rpc://host:port"),
        ("rpc://pi:9190/a/b", "write rpc://host:port"),
        ("rpc://pi:9090?timeout=3", "timeout=3 is no option; there are connect_timeout and"),
        ("rpc://pi:9090?session_timeout=soon", "is no board address"),
        ("emulated:cortex-m4", "there are cortex-a53, cortex-a72, cortex-a76"),
    ]:
        with pytest.raises(BoardError, match=message):
            make_board(spec)


def test_a_board_across_rpc_agrees_with_the_local_one(deployed_mlp, server):
    x = inputs(seed=3)
    with RpcBoard("127.0.0.1", server) as board, deployed_mlp.on(board) as runner:
        assert runner.check().passed
        remote = runner.run(x)
        timing = runner.benchmark(number=2, repeat=3)
        profile = runner.profile(number=5)
    local = deployed_mlp.run(x)
    assert jax.tree.structure(remote) == jax.tree.structure(local)
    for ours, theirs in zip(jax.tree.leaves(remote), jax.tree.leaves(local), strict=True):
        np.testing.assert_array_equal(ours, theirs)  # the same library on the same processor
    assert len(timing.times_ms) == 3
    assert {operator.name for operator in profile} == {
        operator.name for operator in deployed_mlp.profile(number=5)
    }
    assert all(operator.calls == 1 for operator in profile)
    # A second session on the same server, by address.
    assert deployed_mlp.check(f"rpc://127.0.0.1:{server}").passed


def test_a_tracked_board_that_dies_in_the_middle_is_replaced_by_another(
    deployed_mlp, fleet, caplog
):
    tracker, servers = fleet
    with make_board(f"rpc://127.0.0.1:{tracker}/pi") as board:
        board._pause = 0.1
        with deployed_mlp.on(board) as runner:
            assert runner.check().passed
            (serving,) = sessions_of(servers)
            serving.kill()
            assert runner.check().passed
            assert "lost; the session's process" in caplog.text
            assert "attempt 2 of 3 follows" in caplog.text
            for session in sessions_of(servers):
                session.kill()
            with pytest.raises(BoardError, match=r"lost.*given up after 3 attempts; the last:"):
                runner.run(inputs())


def test_a_tracker_names_what_it_lacks(fleet):
    tracker, servers = fleet
    for spec, message in [
        (f"rpc://127.0.0.1:{tracker}/pi5", "the tracker has no board 'pi5'; it has pi"),
        (f"rpc://127.0.0.1:{tracker}", "is no TVM RPC server .* a tracker's boards are rpc://"),
        (f"rpc://127.0.0.1:{servers[0].port}/pi", "is no TVM RPC tracker"),
    ]:
        with pytest.raises(BoardError, match=message):
            make_board(spec).__enter__()
    url = f"rpc://127.0.0.1:{tracker}/pi?connect_timeout=0.5"
    with make_board(url), make_board(url), pytest.raises(BoardError, match="no board 'pi' became"):
        make_board(url).__enter__()


def test_a_board_that_hangs_is_given_up_when_its_session_ends(deployed_mlp, server_process):
    process, port = server_process
    with (
        make_board(f"rpc://127.0.0.1:{port}?session_timeout=2") as board,
        deployed_mlp.on(board) as runner,
    ):
        assert runner.check().passed
        os.killpg(process.pid, signal.SIGSTOP)
        try:
            with pytest.raises(BoardError, match=r"no answer before the session's 2 s ran out"):
                runner.run(inputs())
        finally:
            os.killpg(process.pid, signal.SIGCONT)


def test_a_session_that_ended_while_idle_is_opened_again(deployed_mlp, server):
    with make_board(f"rpc://127.0.0.1:{server}?session_timeout=2") as board:
        board._pause = 0.1
        with deployed_mlp.on(board) as runner:
            time.sleep(2.2)
            assert runner.check().passed


@pytest.mark.arm
def test_a_library_for_another_architecture_is_refused_across_rpc(for_a72, server):
    with pytest.raises(BoardError, match=r"could not load the library, which is for aarch64 \(cor"):
        for_a72.check(f"rpc://127.0.0.1:{server}")


def test_nobody_there():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(BoardError, match=rf"nothing answers at 127\.0\.0\.1:{port}"):
        RpcBoard("127.0.0.1", port, connect_timeout=2).__enter__()


def test_somebody_silent_there():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        board = RpcBoard("127.0.0.1", silent.getsockname()[1], connect_timeout=0.5)
        started = time.monotonic()
        with pytest.raises(BoardError, match=r"did not answer within 0\.5 s"):
            board.__enter__()
        assert time.monotonic() - started < 5


@pytest.mark.parametrize("key", ["", "/pi"])
@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_somebody_else_there(answer, key):
    with socket.create_server(("127.0.0.1", 0)) as stranger:

        def reply():
            connection, _ = stranger.accept()
            with connection:
                connection.recv(64)
                connection.sendall(answer)

        thread = threading.Thread(target=reply)
        thread.start()
        with pytest.raises(BoardError, match="is no TVM RPC " + ("tracker" if key else "server")):
            make_board(f"rpc://127.0.0.1:{stranger.getsockname()[1]}{key}").__enter__()
        thread.join()


def test_somebody_faster_there(server, monkeypatch):
    """Two clients knock at a free server, which then serves one of them."""
    url = f"rpc://127.0.0.1:{server}?connect_timeout=0.5"
    with make_board(url):
        monkeypatch.setattr(connecting, "_knock", lambda *_: None)
        with pytest.raises(BoardError, match=r"did not answer within 0\.5 s"):
            make_board(url).__enter__()


def test_a_board_outside_its_with_statement(deployed_mlp):
    with pytest.raises(BoardError, match="use it in a with statement"):
        deployed_mlp.run(inputs(), board=RpcBoard("127.0.0.1", 9))


def test_emulated_board_not_set_up(monkeypatch, tmp_path):
    monkeypatch.setattr(emulated, "find_emulator", lambda: "qemu")
    monkeypatch.setenv("JAXEFF_CACHE", str(tmp_path))
    with pytest.raises(BoardError, match=r"not set up yet.*emulated\.prepare\(\)"):
        EmulatedBoard().__enter__()
    assert list(tmp_path.iterdir()) == []


def test_preparing_without_tools_names_them(monkeypatch, tmp_path):
    monkeypatch.setenv("JAXEFF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolchainError, match="apt-get install qemu-user"):
        emulated.prepare(progress=None)
    qemu = tmp_path / "qemu-aarch64"
    qemu.touch(mode=0o755)
    with pytest.raises(BoardError, match=r"apt-get not found.*Debian"):
        emulated.prepare(progress=None)
    left = {entry.name for entry in (tmp_path / "cache").rglob("*")}
    assert not {"root", "root.unfinished", "site-packages", "ready"} & left


def test_timing_an_emulated_board_is_refused(deployed_mlp):
    with pytest.raises(BoardError, match="not timed: it is emulated"):
        deployed_mlp.benchmark("emulated")


@pytest.mark.arm
def test_the_emulated_board_agrees_with_jax_and_numpy(for_a72, emulated_board, monkeypatch):
    x = np.asarray(inputs(seed=9))
    with for_a72.on(emulated_board) as runner:
        check = runner.check()
        result = runner.run(x)
        for timed in (runner.benchmark, runner.profile):
            with pytest.raises(BoardError, match="not timed: it is emulated"):
                timed()
        monkeypatch.setattr(emulated_board, "untimed_because", None)
        assert all(operator.calls == 1 for operator in runner.profile(number=2))
    assert check.passed, str(check)
    assert check.board == "emulated:cortex-a72"

    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), parameters())
    hidden = np.maximum(x.astype(np.float64) @ p["w1"].mean + p["b1"], 0)
    logits = hidden @ p["w2"]
    eps = np.finfo(np.float32).eps
    np.testing.assert_allclose(result["hidden"][0], hidden, atol=16 * eps * np.abs(hidden).max())
    mean = result["logits"].mean
    np.testing.assert_allclose(mean, logits, atol=64 * eps * np.abs(logits).max())
    # An absolute error d in the exponent is a relative error d in the result.
    slack = 64 * eps * (1 + 0.1 * np.abs(logits).max())
    variance = np.exp(0.1 * logits) + np.square(hidden) @ np.square(p["w2"])
    np.testing.assert_allclose(result["logits"].var, variance, rtol=slack)


@pytest.mark.arm
def test_every_emulated_core_runs_the_oldest_ones_library_all_at_once(
    arm_linker, emulator, tmp_path
):
    bundle = deploy(mlp, (parameters(), inputs()), target="cortex-a53", path=tmp_path / "a53")
    cores = [f"emulated:{core}" for core in emulated.CORES]
    outcomes = on_boards(bundle, [*cores, "local"], lambda runner: runner.check())
    assert [outcome.board for outcome in outcomes] == [*cores, "local"]
    assert all(outcome.result.passed for outcome in outcomes[:-1])
    assert isinstance(outcomes[-1].error, BundleError)
    assert outcomes[-1].result is None


@pytest.mark.arm
def test_the_other_way_round_is_refused(for_a72, deployed_mlp, emulated_board):
    with pytest.raises(BundleError, match=r"for aarch64 \(cortex-a72\), the board local"):
        for_a72.run(inputs())
    with pytest.raises(BundleError, match=r"the board emulated:cortex-a72 is aarch64"):
        deployed_mlp.run(inputs(), board=emulated_board)


@pytest.mark.arm
def test_a_newer_core_is_refused_by_an_older_one_and_runs_on_its_own(
    arm_linker, emulated_board, tmp_path
):
    bundle = deploy(mlp, (parameters(), inputs()), target="cortex-a76", path=tmp_path / "a76")
    with pytest.raises(BundleError, match=r"compiled for cortex-a76.*lacks its .*dotprod"):
        bundle.check(emulated_board)
    check = bundle.check("emulated")
    assert check.passed
    assert check.board == "emulated:cortex-a76"


@pytest.mark.arm
def test_a_board_that_dies_is_a_clear_error_and_leaves_nothing(for_a72, emulator):
    board = EmulatedBoard()
    with board:
        server = psutil.Process(board._server.pid)
        with for_a72.on(board) as runner:
            assert runner.check().passed
            family = [server, *server.children(recursive=True)]
            assert len(family) > 1
            for session in family[1:]:
                session.send_signal(signal.SIGKILL)
            with pytest.raises(BoardError, match=r"could not run the library: the connection"):
                runner.run(inputs())
    assert not any(_alive(process) for process in family)
    with pytest.raises(BoardError, match="was left; use the runner inside"):
        runner.run(inputs())
    with board, for_a72.on(board) as runner:  # and it can be started again
        assert runner.check().passed


@pytest.mark.arm
def test_no_orphans_when_the_parent_is_killed(emulator):
    code = (
        "import os\n"
        "from jaxeff_export.boards import EmulatedBoard\n"
        "with EmulatedBoard() as board:\n"
        "    print(board._server.pid, flush=True)\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL
    with contextlib.suppress(psutil.NoSuchProcess):
        server = psutil.Process(int(done.stdout))
        deadline = time.monotonic() + 10
        while _alive(server) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not _alive(server)


@pytest.mark.arm
def test_preparing_twice_does_nothing(emulator, monkeypatch):
    said = []
    monkeypatch.setattr("jaxeff_export.boards.sysroot.subprocess", None)  # any use would raise
    assert emulated.prepare(progress=said.append).ready
    assert said == []


def _alive(process):
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def test_an_interrupted_step_is_started_over_and_a_finished_one_kept(tmp_path):
    finished = tmp_path / "root"

    def interrupted():
        with sysroot._step(finished) as folder:
            (folder / "half").touch()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []
    # A killed process cannot clean up: its leftovers must not be taken for a result.
    (tmp_path / "root.unfinished").mkdir()
    (tmp_path / "root.unfinished" / "half").touch()
    with sysroot._step(finished) as folder:
        (folder / "whole").touch()
    assert [entry.name for entry in tmp_path.rglob("*")] == ["root", "whole"]
    with sysroot._step(finished) as folder:
        assert folder is None
