"""Bundles on a board at the other end of a serial line, which loses bytes and resets the board."""

from __future__ import annotations

import importlib.util
import os
import pty
import signal
import socket
import subprocess
import time
import tty
from collections import Counter

import command_line
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from c_programs import call, require
from jaxeff_export import BoardError, MissingExtraError, deploy
from jaxeff_export.boards import SerialBoard, flash_firmware, make_board
from jaxeff_export.boards import _serial as protocol
from jaxeff_export.bundle import run_on_boards
from jaxeff_export.clib import count_instructions
from jaxeff_export.targets import emulation
from serial_line import Line, noise

from jaxeff.adapters import learner


def net(params, x, steps):
    hidden = jnp.tanh(x @ params["w"])
    return {"scores": hidden @ params["v"], "codes": (40 * x).astype(jnp.int8), "steps": steps + 1}


def parameters(scale=1.0):
    first, second = jax.random.split(jax.random.key(0))
    return {"w": scale * jax.random.normal(first, (8, 16)), "v": jax.random.normal(second, (16, 3))}


X = jax.random.normal(jax.random.key(2), (4, 8))


def deployed(folder, name, scale=1.0, target="host", **more):
    """A bundle, and the firmware of its library."""
    bundle = deploy(net, (parameters(scale), X, jnp.int32(3)), target=target, path=folder / name)
    return bundle, *firmware(bundle, folder, name, **more)


def firmware(bundle, folder, name, **more):
    """The firmware of a bundle's library."""
    library = bundle.export_c(folder / f"{name}_c", name=name, **more)
    call(*library.serial_build, "-o", "firmware", folder=library.folder)
    return [str(library.folder / "firmware")], library


def learning(folder, target="host"):
    """A bundle whose last layer learns, and its firmware."""
    weights = parameters()

    def f(params, x):
        return jnp.tanh(x @ weights["w"]) @ params["v"]

    step, codes, state = learner(f, {"v": weights["v"]}, X[:1], optimizer=optax.sgd(0.1))
    args = codes, X[:1], jnp.zeros(1, jnp.int32), state
    bundle = deploy(step, args, target=target, path=folder / "learns", state=("state",))
    return bundle, *firmware(bundle, folder, "learns")


def taught(session, rows):
    """What a session says of inputs, one of which it is told."""
    return [session.step(X[i : i + 1], np.array([y], np.int32)) for i, y in rows]


LESSON, ASKED = [(0, 2), (1, -1), (2, 0), (0, 2)], [(i, -1) for i in range(4)]


def goes_along(session, path):
    """What is said along a session that learns, is saved, forgets and is loaded again."""
    before = taught(session, ASKED)
    taught(session, LESSON)
    session.save(path)
    learnt = taught(session, ASKED)
    session.reset()
    anew = taught(session, ASKED)
    session.load(path)
    return np.array([before, learnt, anew, taught(session, ASKED)])


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    return deployed(tmp_path_factory.mktemp("serial"), "net")


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    return deployed(tmp_path_factory.mktemp("serial"), "other", 2.0)


@pytest.fixture
def line(network):
    line = Line(network[1])
    yield line
    line.end()


@pytest.fixture
def patience(monkeypatch):
    """Less of it: what is lost here is sent again soon."""
    monkeypatch.setattr(protocol, "_FIRST_WAIT", 0.02)


def board_on(line, **more):
    return SerialBoard(line.place, baud=1 << 20, open_port=lambda: line, **more)


def test_the_firmware_computes_what_jax_does(network, line):
    bundle, *_ = network
    with board_on(line) as board, bundle.on(board) as runner:
        assert board.firmware.name == "net"
        assert board.firmware.model == bundle.manifest.model
        assert runner.check().passed
        x = jax.random.normal(jax.random.key(5), X.shape)
        ours, here = runner.run(x, jnp.int32(7)), bundle.run(x, jnp.int32(7))
        jax.tree.map(np.testing.assert_array_equal, ours, here)
        assert board.resent == 0
        timing = runner.benchmark(number=3, repeat=4)
        assert len(timing.times_ms) == 4
        assert timing.cycles == pytest.approx(timing.median_ms * 1e5)
        profile = runner.profile(number=3, repeat=2)
    assert sum(one.share for one in profile) == pytest.approx(1)
    names = [step.kernel for step in network[2].steps]
    assert {one.name: one.calls for one in profile} == Counter(names)
    assert all(one.cycles == pytest.approx(1e5 * one.ms) for one in profile)


@pytest.mark.parametrize("seed", range(3))
def test_bytes_that_are_lost_or_change_cost_time_alone(seed, network, line, patience):
    bundle, *_ = network
    line.to_board = noise(seed, lost=0.001, changed=0.001)
    line.from_board = noise(10 + seed, lost=0.001, changed=0.001)
    with board_on(line) as board, bundle.on(board) as runner:
        for number in range(6):
            x = jax.random.normal(jax.random.key(number), X.shape)
            ours, here = runner.run(x, jnp.int32(number)), bundle.run(x, jnp.int32(number))
            jax.tree.map(np.testing.assert_array_equal, ours, here)
        assert board.resent > 0


@pytest.fixture(scope="module")
def learns(tmp_path_factory):
    return learning(tmp_path_factory.mktemp("serial"))


def test_what_a_board_learns_is_kept_and_forgotten_over_the_line(learns, tmp_path, patience):
    bundle, command, _ = learns
    here = goes_along(bundle.session(), tmp_path / "here.npz")
    line = Line(command, noise(0, lost=0.001, changed=0.001), noise(1, lost=0.001))
    try:
        with board_on(line) as board, bundle.on(board) as runner:
            session = runner.session()
            there = goes_along(session, tmp_path / "there.npz")
            line.reset()  # its memory is lost, and the session goes on
            np.testing.assert_array_equal(taught(session, ASKED), there[-1])
            assert board.resets == 1
    finally:
        line.end()
    np.testing.assert_array_equal(there, here)
    before, learnt, anew, again = there
    np.testing.assert_array_equal(anew, before)
    np.testing.assert_array_equal(again, learnt)
    assert np.abs(learnt - before).max() > 0.1
    # What was learnt there is a session's here.
    session = bundle.session()
    session.load(tmp_path / "there.npz")
    np.testing.assert_array_equal(taught(session, ASKED), learnt)


def test_a_state_that_the_board_has_is_not_sent_again(learns, patience):
    bundle, command, _ = learns
    line = Line(command)
    sent = []

    def counted(data):
        sent.append(len(data))
        return data

    line.to_board = counted
    try:
        with board_on(line) as board, bundle.on(board) as runner:
            session, here = runner.session(), bundle.session()
            for _ in range(2):
                sent.clear()
                np.testing.assert_array_equal(taught(session, ASKED), taught(here, ASKED))
            kept = sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(session.state()))
            calls = len(ASKED)
            assert sum(sent) < calls * (kept + X[:1].nbytes)
            # A session beside it has another state there, and each goes on with its own.
            beside, other = runner.session(), bundle.session()
            for ours, theirs in ((beside, other), (session, here)) * 2:
                np.testing.assert_array_equal(taught(ours, LESSON), taught(theirs, LESSON))
            # Nor is one taken for the board's that was set here.
            session.reset()
            here.reset()
            np.testing.assert_array_equal(taught(session, LESSON), taught(here, LESSON))
            assert board.resets == 0
    finally:
        line.end()


def test_a_flash_command_that_fails_says_why(network, tmp_path):
    bundle, *_ = network
    image = tmp_path / "fw.elf"
    image.write_bytes(b"elf")

    def refused(message, *options, board="serial:/dev/none"):
        result = command_line.call("check", bundle.folder, "--board", board, *options)
        assert command_line.refused(result, message)

    fails = "sh -c 'echo no device found; exit 3'"
    refused("the flash command ended with status 3: no device found", "--flash", fails)
    refused("ended with status 1: it said nothing", "--flash", "false")
    refused("'flasher' can't be run", "--flash", "flasher")
    refused("takes an {image}: name it (--image)", "--flash", "echo {image}")
    refused("has no {image}, which", "--flash", "echo", "--image", image)
    refused("there is no image", "--flash", "echo {image}", "--image", tmp_path / "none.elf")
    refused("an --image needs a --flash command", "--image", image)
    refused("--flash is for boards on a serial line", "--flash", "echo", board="local")


def test_what_a_flash_command_starts_may_go_on(tmp_path):
    begun = time.monotonic()
    flash_firmware(f"sh -c 'sleep 30 & echo $! > {tmp_path}/started'")
    assert time.monotonic() - begun < 20
    os.kill(int((tmp_path / "started").read_text()), signal.SIGTERM)


@pytest.mark.parametrize("frames", range(4))
def test_a_reset_at_any_time_costs_time_alone(frames, network, line, patience):
    bundle, *_ = network
    x = jax.random.normal(jax.random.key(9), X.shape)
    with board_on(line) as board, bundle.on(board) as runner:
        runner.run(X, jnp.int32(1))
        left = [frames]

        def reset(data):
            left[0] -= 1
            if left[0] == -1:
                line.reset()
            return data

        line.to_board = reset
        ours, here = runner.run(x, jnp.int32(2)), bundle.run(x, jnp.int32(2))
        jax.tree.map(np.testing.assert_array_equal, ours, here)
        assert left[0] < 0
        assert board.resets == 1


def test_a_board_that_resets_all_the_time_is_given_up(network, line, patience):
    bundle, *_ = network
    with board_on(line) as board, bundle.on(board) as runner:

        def reset(data):
            if data[1] == protocol._RUN:
                line.reset()
            return data

        line.to_board = reset
        with pytest.raises(BoardError, match="was reset, the 5th time in one call: a watchdog"):
            runner.run(X, jnp.int32(2))


def test_another_firmware_is_told_by_name(network, other, line, patience):
    bundle, *_ = network
    theirs, command, _ = other
    wanted = f"runs the firmware other .*{theirs.manifest.model}.*, not this bundle's .model "
    with board_on(line) as board, bundle.on(board) as runner:
        runner.run(X, jnp.int32(1))
        line.reset(command)  # somebody flashes it meanwhile
        with pytest.raises(BoardError, match=wanted + bundle.manifest.model):
            runner.run(X, jnp.int32(1))
        with pytest.raises(BoardError, match=wanted), bundle.on(board):
            pass
        with theirs.on(board) as runner:
            assert runner.check().passed


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (["sleep", "60"], "at 1048576 baud said nothing in .* crossed|NAME_serial.c .*baud=9600"),
        (["yes", "temperature 21"], "bytes in .*, and no whole answer: its rate may be another"),
    ],
)
def test_a_board_without_the_firmware_says_so(program, said):
    line = Line(program)
    try:
        with pytest.raises(BoardError, match=said), board_on(line, timeout=0.3):
            pass
    finally:
        line.end()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("serial:", "names no port: write serial:/dev/ttyACM0"),
        ("serial:/dev/ttyACM0?bauds=9600", "bauds=9600 sets nothing; write serial:/dev/ttyACM0"),
        ("serial:COM3?baud=fast", "baud=fast sets nothing; write serial:COM3"),
        ("serial:COM3?mhz=0", "mhz=0 sets nothing"),
    ],
)
def test_names_of_boards_are_checked(name, said):
    with pytest.raises(BoardError, match=said):
        make_board(name)


def test_a_name_says_rate_and_patience():
    board = make_board("serial:/dev/ttyUSB1?baud=9600&timeout=2.5&mhz=16")
    assert (board.name, board.baud, board.timeout) == ("serial:/dev/ttyUSB1", 9600, 2.5)
    assert board.hertz == 16e6


def test_pyserial_opens_a_port_by_its_name(network):
    pytest.importorskip("serial")
    bundle, command, _ = network
    # The other way round: the firmware holds the end that a machine's own ports don't have.
    board_end, port = pty.openpty()
    tty.setraw(port)
    program = subprocess.Popen(command, stdin=board_end, stdout=board_end)
    try:
        name = f"serial:{os.ttyname(port)}?baud=230400"
        assert bundle.check(name).passed
        assert bundle.benchmark(name, number=2, repeat=2).cycles > 0
        (outcome,) = run_on_boards(bundle, [name], lambda runner: runner.profile(2, 2), timed=True)
        assert outcome.result
    finally:
        program.kill()
        program.wait()
        os.close(board_end)
        os.close(port)


def test_a_port_that_does_not_open_says_which_there_are():
    pytest.importorskip("serial")
    with pytest.raises(BoardError, match=r"at 9600 baud does not open: .* Ports"):
        make_board("serial:/dev/none?baud=9600").__enter__()


@pytest.mark.skipif(importlib.util.find_spec("serial") is not None, reason="pyserial is installed")
def test_without_pyserial_the_extra_is_named():
    with pytest.raises(MissingExtraError, match=r"pyserial.*jaxeff\[serial\]"):
        make_board("serial:/dev/none").__enter__()


EMULATED = ("cortex-m4", "cortex-m7", "cortex-m0plus", "cortex-m33", "cortex-m55", "riscv32")


def emulated(target, library):
    """The command that emulates a board whose UART is its input and output."""
    command = emulation(target, library.target, library.folder / "firmware")
    at = command.index("-serial")
    uart = ["-chardev", "stdio,id=uart,signal=off", "-serial", "chardev:uart"]
    # A nanosecond an instruction: what a timer counts is the same number every time.
    return [*command[:at], *uart, *command[at + 2 :], "-icount", "shift=0"]


@pytest.mark.slow
@pytest.mark.parametrize("target", EMULATED)
def test_an_emulated_board_answers_over_its_uart(target, tmp_path, patience):
    require("arm-none-eabi-gcc", "qemu-system-arm")
    require("riscv64-unknown-elf-gcc", "qemu-system-riscv32")
    bundle, _, library = deployed(tmp_path, "net", target=target)
    line = Line(emulated(target, library), noise(0, lost=0.001, changed=0.001), noise(1, 0.001))
    more = {"mhz": 1000.0} if target == "riscv32" else {}
    try:
        with board_on(line, **more) as board, bundle.on(board) as runner:
            assert board.firmware.target == target
            assert runner.check().passed
            timing = runner.benchmark(number=4, repeat=3)
            line.reset()
            profile = runner.profile(number=4, repeat=3)
            assert board.resets == 1
            assert board.resent > 0
        # The oracle: qemu's own count of instructions, of a nanosecond each. Ticks are of 40.
        counted = count_instructions(library, target).total
        assert timing.median_ms * 1e6 == pytest.approx(counted, rel=0.2)
        assert sum(one.ms for one in profile) == pytest.approx(timing.median_ms, rel=0.1)
    finally:
        line.end()


@pytest.mark.slow
def test_an_emulated_board_learns_over_its_uart(tmp_path, patience):
    require("arm-none-eabi-gcc", "qemu-system-arm")
    bundle, _, library = learning(tmp_path, "cortex-m4")
    line = Line(emulated("cortex-m4", library), noise(0, lost=0.001), noise(1, changed=0.001))
    try:
        with board_on(line) as board, bundle.on(board) as runner:
            there = goes_along(runner.session(), tmp_path / "there.npz")
            assert board.resent > 0
    finally:
        line.end()
    (tmp_path / "host").mkdir()
    here, _, _ = learning(tmp_path / "host")
    expected = goes_along(here.session(), tmp_path / "here.npz")
    # Another processor's `tanh` and order of sums.
    np.testing.assert_allclose(there, expected, rtol=1e-5, atol=1e-5)
    before, learnt, anew, again = there
    np.testing.assert_array_equal(anew, before)
    np.testing.assert_array_equal(again, learnt)


@pytest.mark.slow
def test_a_command_flashes_the_emulated_board(tmp_path):
    pytest.importorskip("serial")
    require("arm-none-eabi-gcc", "qemu-system-arm")
    _, _, library = deployed(tmp_path, "net", target="cortex-m4")
    _, _, wrong = deployed(tmp_path, "wrong", 2.0, target="cortex-m4")
    with socket.create_server(("127.0.0.1", 0)) as free:
        place = f"127.0.0.1:{free.getsockname()[1]}"
    emulator = emulation("cortex-m4", library.target, tmp_path / "image")
    at, running = emulator.index("-serial"), tmp_path / "running"
    line = "-serial", f"tcp:{place},server=on,wait=off"
    starts = *emulator[:at], *line, *emulator[at + 2 : -1], "{image}"
    command = " ".join([*starts, "-daemonize", "-pidfile", str(running)])

    def checked(library):
        board = "--board", f"serial:socket://{place}", "--flash", command
        image = "--image", library.folder / "firmware"
        try:
            return command_line.call("check", tmp_path / "net", *board, *image)
        finally:
            os.kill(int(running.read_text()), signal.SIGKILL)

    result = checked(library)
    assert result.exit_code == 0, result.output
    result = checked(wrong)
    assert result.exit_code == 1
    assert "runs the firmware wrong" in result.stderr
