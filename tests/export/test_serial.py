"""Bundles on a board at the other end of a serial line, which loses bytes and resets the board."""

from __future__ import annotations

import importlib.util
import os
import pty
import subprocess
import tty
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from c_programs import call, require
from jaxeff_export import BoardError, MissingExtraError, deploy
from jaxeff_export.boards import SerialBoard, make_board
from jaxeff_export.boards import _serial as protocol
from jaxeff_export.bundle import run_on_boards
from jaxeff_export.clib import count_instructions
from jaxeff_export.targets import emulation
from serial_line import Line, noise


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
    library = bundle.export_c(folder / f"{name}_c", name=name, **more)
    call(*library.serial_build, "-o", "firmware", folder=library.folder)
    return bundle, [str(library.folder / "firmware")], library


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


@pytest.mark.parametrize("frames", range(5))
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
