"""Boards: each runs the same bundle to the same result, and fails with one clear error."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import psutil
import pytest
import tvm
from jaxeff_export import BoardError, BundleError, ToolchainError, deploy, run_on_boards
from jaxeff_export.boards import (
    EmulatedBoard,
    LocalBoard,
    RpcBoard,
    emulated,
    make_board,
    run_on_threads,
)
from jaxeff_export.boards import _sysroot as sysroot
from jaxeff_export.runtime._threads import threads
from small_network import inputs, mlp, parameters


def test_names_of_boards():
    assert isinstance(make_board("local"), LocalBoard)
    assert make_board("rpc://pi:9090").name == "rpc://pi:9090"
    assert make_board("rpc://hub:9190/pi4?session_timeout=60").name == "rpc://hub:9190/pi4"
    assert make_board("emulated").name == "emulated:cortex-a72"
    assert make_board("emulated", target={"mcpu": "cortex-a53"}).name == "emulated:cortex-a53"
    assert make_board("emulated", target={"mcpu": "znver4"}).name == "emulated:cortex-a72"
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
        ("emulated:cortex-a5", "there are cortex-a53, cortex-a72, cortex-a76"),
    ]:
        with pytest.raises(BoardError, match=message):
            make_board(spec)


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
def test_the_emulated_board_agrees_with_jax_and_numpy(mlp_for_a72, emulated_board, monkeypatch):
    x = np.asarray(inputs(seed=9))
    with mlp_for_a72.on(emulated_board) as runner:
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
    outcomes = run_on_boards(bundle, [*cores, "local"], lambda runner: runner.check())
    assert [outcome.board for outcome in outcomes] == [*cores, "local"]
    assert all(outcome.result.passed for outcome in outcomes[:-1])
    assert isinstance(outcomes[-1].error, BundleError)
    assert outcomes[-1].result is None


@pytest.mark.arm
def test_the_other_way_round_is_refused(mlp_for_a72, deployed_mlp, emulated_board):
    with pytest.raises(BundleError, match=r"for aarch64 \(cortex-a72\), the board local"):
        mlp_for_a72.run(inputs())
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
def test_a_board_that_dies_is_a_clear_error_and_leaves_nothing(mlp_for_a72, emulator):
    board = EmulatedBoard()
    with board:
        server = psutil.Process(board._server.pid)
        with mlp_for_a72.on(board) as runner:
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
    with board, mlp_for_a72.on(board) as runner:  # and it can be started again
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
        deadline = time.monotonic() + 60
        while _alive(server) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not _alive(server)


@pytest.mark.arm
def test_preparing_twice_does_nothing(emulator, monkeypatch):
    said = []
    monkeypatch.setattr("jaxeff_export.boards._sysroot.subprocess", None)  # any use would raise
    assert emulated.prepare(progress=said.append).ready
    assert said == []


def _alive(process):
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


@pytest.mark.process
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


@pytest.fixture
def anew(monkeypatch):
    """Counts threads of kernels, and cores meanwhile and after, where TVM wasn't used before."""
    for name in ("TVM_NUM_THREADS", "OMP_NUM_THREADS", "TVM_BIND_THREADS"):
        monkeypatch.delenv(name, raising=False)

    def count(asked):
        with threads(asked) as there:
            meanwhile = len(os.sched_getaffinity(0))
        return there, meanwhile, len(os.sched_getaffinity(0))

    with ThreadPoolExecutor(1) as pool:
        yield lambda asked: pool.submit(count, asked).result()


def test_kernels_run_on_as_many_threads_as_the_target_has_cores(anew, monkeypatch):
    cores = len(os.sched_getaffinity(0))
    assert anew(1) == (1, cores, cores)
    assert anew(cores) == (cores, 1, cores)  # whoever calls is bound to a core no longer than that
    monkeypatch.setenv("TVM_BIND_THREADS", "0")
    assert anew(cores) == (cores, cores, cores)
    monkeypatch.setenv("TVM_NUM_THREADS", "1")
    assert anew(cores) == (1, cores, cores)


def test_threads_for_which_there_are_no_cores_are_a_warning(anew):
    cores = len(os.sched_getaffinity(0))
    with pytest.warns(RuntimeWarning, match=f"on {cores} of 1000 threads"):
        assert anew(1000)[0] == cores


def test_threads_that_a_pool_lacks_are_a_warning(anew):
    if len(os.sched_getaffinity(0)) == 1:
        pytest.skip("a core has no threads to share")
    function = tvm.get_global_func("runtime.NumThreads")
    with ThreadPoolExecutor(1) as pool:
        there = pool.submit(function).result()  # starts it
        with pytest.warns(RuntimeWarning, match=f"on {there} of 1000 threads"):
            pool.submit(lambda: threads(1000).__enter__()).result()


def test_kernels_on_several_threads_are_called_by_two_threads_however_many_ask():
    """TVM's pools outlive the threads that they belong to, and spin."""

    def caller(count):
        with ThreadPoolExecutor(1) as pool:
            asking = pool.submit(threading.current_thread).result()
            return asking, pool.submit(run_on_threads, count, threading.current_thread).result()

    (one, first), (another, second) = caller(2), caller(2)
    assert first is second
    assert first not in (one, another)
    assert run_on_threads(2, threading.current_thread) is threading.main_thread()
    asking, called = caller(1)
    assert called is asking  # such calls run side by side
