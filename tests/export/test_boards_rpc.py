"""Boards across RPC: found, lost, taken up again, and refused with one clear error."""

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
from jaxeff_export import ARM_TARGETS, BoardError, BundleError, deploy
from jaxeff_export.boards import LocalBoard, RpcBoard, make_board
from jaxeff_export.boards import _board as processor
from jaxeff_export.boards import _rpc as connecting
from jaxeff_export.targets._target import _reported_features
from small_network import inputs
from tvm.rpc import Server
from tvm.rpc.tracker import Tracker

needs_modalias = pytest.mark.skipif(
    not Path(processor.MODALIAS).is_file(), reason="this kernel offers no modalias"
)
SERVER = Path(jaxeff_export.boards.__file__).with_name("_device_server.py")


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


def test_a_session_stays_on_a_board_and_shares_no_state_of_another(server):
    one = np.float32(1)
    bundle = deploy(lambda x, total: (2 * x, total + x), (one, one), parameters=0, state=("total",))
    here = bundle.session()
    with bundle.on(f"rpc://127.0.0.1:{server}") as runner:
        there, other = runner.session(), runner.session()
        both = runner.session(shared=there)
        for x in (one, 5 * one):
            assert there.step(x) == 2 * x
        assert both.step(3 * one) == 6
        assert there.state()["total"] == both.state()["total"] == 10
        there.reset()
        assert both.step(one) == 2
        assert there.state()["total"] == 2
        assert other.state()["total"] == 1
        with pytest.raises(BundleError, match="the shared session is not on rpc://"):
            runner.session(shared=here)
        with pytest.raises(BundleError, match=r"is not on local: .* pass on its state\(\)"):
            bundle.session(shared=there)


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
def test_a_library_for_another_architecture_is_refused_across_rpc(mlp_for_a72, server):
    with pytest.raises(BoardError, match=r"for aarch64 \(cortex-a72\): its loader refuses"):
        mlp_for_a72.check(f"rpc://127.0.0.1:{server}")


@needs_modalias
def test_a_processor_without_the_instructions_is_refused_before_it_dies(
    deployed_mlp, server, monkeypatch
):
    url = f"rpc://127.0.0.1:{server}"
    with monkeypatch.context() as patch:
        absent = {m: dict.fromkeys(names, 0xFFFF) for m, names in processor._NUMBERS.items()}
        patch.setattr(processor, "_NUMBERS", absent)
        with pytest.raises(BundleError, match=r"lacks its .*; deploy for this board's processor"):
            deployed_mlp.check(url)
    assert deployed_mlp.check(url).passed  # and the server lives


def test_what_a_modalias_says():
    a72 = "cpu:type:aarch64:feature:,0000,0001,0002,0007,000B\n" + "\0" * 100
    a76 = "cpu:type:aarch64:feature:,0000,0001,0002,0007,0008,0009,000A,000B,0014\n"
    for core, modalias, missing in [
        ("cortex-a72", a72, ()),
        ("cortex-a76", a76, ()),
        ("cortex-a72", a76, ()),
        ("cortex-a76", a72, ("asimddp", "asimdhp", "atomics")),
        ("cortex-a76", "cpu:type:x86,ven0000fam0006mod009E:feature:,0000,0001", ()),
        ("cortex-a76", "", ()),
    ]:
        assert processor.lacking(modalias, ARM_TARGETS[core]) == missing


@needs_modalias
def test_the_numbers_of_features_are_this_kernels():
    features = Path(processor.MODALIAS).read_text().partition(":feature:,")[2].split(",")
    present = {int(number, 16) for number in features}
    numbers = processor._NUMBERS[LocalBoard().machine]
    here = {name for name in numbers if numbers[name] in present}
    assert here == set(numbers) & _reported_features()


def test_nobody_there():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(BoardError, match=rf"nothing answers at 127\.0\.0\.1:{port}"):
        RpcBoard("127.0.0.1", port, connect_timeout=2).__enter__()


def test_somebody_silent_there():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        board = RpcBoard("127.0.0.1", silent.getsockname()[1], connect_timeout=0.5)
        with pytest.raises(BoardError, match=r"did not answer within 0\.5 s"):
            board.__enter__()


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


def _alive(process):
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
