"""A firmware that speaks MLPerf Tiny's protocol, what asks it, and a submission's folder."""

from __future__ import annotations

import json
import re
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from c_programs import STRICT, call, require
from jaxeff_export import BoardError, deploy
from jaxeff_export.clib import count_instructions
from jaxeff_export.mlperf_tiny import TASKS, Entry, Inference, TinyDevice, measure, submission
from jaxeff_export.mlperf_tiny import _device as protocol
from jaxeff_export.targets import emulation
from serial_line import Line, noise

WEIGHTS = jax.random.normal(jax.random.key(0), (490, 12)) / 300
INPUTS = jax.random.randint(jax.random.key(1), (6, 1, 490), -128, 128).astype(jnp.int8)


def scores(weights, x):
    return jax.nn.softmax(x.astype(jnp.float32) @ weights)


def firmware(folder, target="host", f=scores, flags=()):
    library = deploy(f, (WEIGHTS, INPUTS[0]), target=target).export_c(folder / "c", name="net")
    build(library, *flags)
    return library


def build(library, *flags):
    flags = ('-DNET_MLPERF="kws01"', *flags)
    call(*library.serial_build, *flags, "-o", "firmware", folder=library.folder)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return firmware(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def line(library):
    line = Line([str(library.folder / "firmware")])
    yield line
    line.end()


@pytest.fixture
def patience(monkeypatch):
    monkeypatch.setattr(protocol, "_FIRST_WAIT", 0.05)
    monkeypatch.setattr(protocol, "_SILENCE", 0.02)


class Runner:
    """Asks as MLCommons' runner does: without a check, by its own regular expressions."""

    def __init__(self, line):
        self.line, self.text = line, ""

    def ask(self, command):
        self.line.write(f"{command}%".encode())
        lines = []
        while not (lines and "m-ready" in lines[-1]):
            if "\n" in self.text:
                first, _, self.text = self.text.partition("\n")
                lines.append(first.strip("\r"))
            else:
                self.line.timeout = 5
                more = self.line.read(4096)
                assert more, f"no response to {command}: {lines}"
                self.text += more.decode()
        return lines

    def start(self):
        """Drops what the device says at its start."""
        # Its own lines end with m-ready, too, and stand before the answer.
        while self.ask("name") != ["m-name-dut-[jaxeff]", "m-ready"]:
            pass
        time.sleep(0.05)
        self.text = ""
        self.line.timeout = 0.05
        self.line.read(4096)

    def load(self, data):
        said = self.ask(f"db load {len(data)}")
        for begin in range(0, len(data), 31):
            said = self.ask("db " + "".join(f"{byte:02x}" for byte in data[begin : begin + 31]))
        return said


def expected(x):
    return np.asarray(jax.jit(scores)(WEIGHTS, x))[0]


def test_the_runners_session(line):
    runner = Runner(line)
    runner.start()
    said = runner.ask("profile")
    assert {re.fullmatch(r"m-(model|profile)-\[([^]]+)]", text)[1] for text in said[:2]} == {
        "model", "profile",
    }  # fmt: skip
    assert "m-model-[kws01]" in said
    x = INPUTS[0]
    assert runner.ask("infer 1 0")[0].startswith("e-[0 bytes of input")
    assert runner.load(np.asarray(x).tobytes()) == ["m-load-done", "m-ready"]
    said = runner.ask("infer 7 3")
    assert [text for text in said if not re.match("m-(lap|results)", text)] == [
        "m-warmup-start-3", "m-warmup-done", "m-infer-start-7", "m-infer-done", "m-ready",
    ]  # fmt: skip
    start, end = (int(m[1]) for text in said if (m := re.fullmatch(r"m-lap-us-([0-9]+)", text)))
    assert end >= start
    (answer,) = (m[1] for text in said if (m := re.fullmatch(r"m-results-\[([^]]+)]", text)))
    np.testing.assert_allclose([float(one) for one in answer.split(",")], expected(x), atol=6e-4)
    assert runner.ask("results") == [f"m-results-[{answer}]", "m-ready"]
    printed = "".join(text[9:].replace("-", "") for text in runner.ask("db print")[:-1])
    assert printed == np.asarray(x).tobytes().hex()
    assert runner.ask("db print 3 8")[0] == "m-buffer-" + np.asarray(x).tobytes()[8:11].hex("-")
    assert runner.ask("timestamp")[0].startswith("m-lap-us-")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("launch 3", "e-[Unknown command: launch]"),
        ("db load 491", "e-[The network takes 490 bytes: db load comes with them]"),
        ("db 00", "e-[db load comes first]"),
        ("db 0g", "e-[A byte is two of 0123456789abcdef]"),
        ("infer 0", "e-[infer N [W=10]: N calls, one at least, after W]"),
        ("infer -1", "e-[infer N [W=10]: N calls, one at least, after W]"),
        ("results", "e-[There are no results: infer comes first]"),
        ("x" * 81, "e-[The command is too long]"),
    ],
)
def test_a_wrong_command_is_answered(command, said, line):
    runner = Runner(line)
    runner.start()
    assert runner.ask(command) == [said, "m-ready"]
    assert runner.ask("name") == ["m-name-dut-[jaxeff]", "m-ready"]


def test_half_a_byte_leaves_what_was_loaded(line):
    runner = Runner(line)
    runner.start()
    runner.ask("db load 490")
    runner.ask("db 0102")
    assert runner.ask("db 030")[0] == "e-[Half a byte is missing]"
    assert runner.ask("db print")[0] == "m-buffer-01-02"


@pytest.mark.parametrize("seed", range(2))
def test_bytes_that_are_lost_or_change_cost_time_alone(seed, line, patience):
    line.to_board = noise(seed, lost=0.0002, changed=0.0002)
    with TinyDevice(line.place, open_port=lambda: line) as device:
        for x in INPUTS:
            answer = device.infer(np.asarray(x).tobytes())
            np.testing.assert_allclose(answer.results, expected(x), atol=6e-4)
        assert device.model == "kws01"
        assert device.resent + len([text for text in device.log if text.startswith("e-")]) > 0


@pytest.mark.parametrize("command", ["db load", "db print", "infer", "results"])
def test_a_reset_costs_time_alone(command, line, patience):
    left = [command]

    def reset(data):
        if left and data.startswith(left[0].encode()):
            left.clear()
            line.reset()
        return data

    with TinyDevice(line.place, open_port=lambda: line) as device:
        line.to_board = reset
        answer = device.infer(np.asarray(INPUTS[1]).tobytes(), calls=2, warmups=1)
        np.testing.assert_allclose(answer.results, expected(INPUTS[1]), atol=6e-4)
        assert not left
        assert answer.calls == 2


def test_an_input_of_another_size_is_refused(line, patience):
    with TinyDevice(line.place, open_port=lambda: line) as device:
        assert device.name == "jaxeff"
        with pytest.raises(BoardError, match=r"takes no 3 bytes: .*takes 490"):
            device.infer(b"abc")


def test_a_silent_device_is_given_up(patience):
    line = Line(["sleep", "60"])
    try:
        device = TinyDevice(line.place, open_port=lambda: line, timeout=0.05)
        with device, pytest.raises(BoardError, match=r"does not answer 'profile'.*-DNAME_MLPERF"):
            _ = device.model
    finally:
        line.end()


def test_values_are_written_to_three_digits(tmp_path):
    # Python reads them back; JAX's NaN would be none to check against, so a byte asks for it.
    wanted = [0.0, -0.0004, 0.9996, -1.25, 123456.75, 3e9, np.nan, 0.001, 99.9994, 2, np.inf]
    values = jnp.array(wanted, jnp.float32)

    def constants(_, x):
        return jnp.where(jnp.isnan(values) & (x[0, 0] != 5), 0, values)

    library = firmware(tmp_path, f=constants)
    line = Line([str(library.folder / "firmware")])
    try:
        runner = Runner(line)
        runner.start()
        runner.load(bytes([5]) * 490)
        (said,) = (text for text in runner.ask("infer 1 0") if text.startswith("m-results"))
    finally:
        line.end()
    answer = [float(one) for one in said[11:].strip("[]").split(",")]
    np.testing.assert_allclose(answer, wanted, rtol=0, atol=6e-4)


def test_results_that_cannot_be_written_are_refused_by_the_compiler(tmp_path):
    half = deploy(lambda w, x: scores(w, x).astype(jnp.float16), (WEIGHTS, INPUTS[0]))
    library = half.export_c(tmp_path / "c", name="net")
    with pytest.raises(AssertionError, match=r"is float16: a result of MLPerf Tiny is an array"):
        build(library)


def test_the_firmware_is_strict_c99(library):
    folder = library.folder
    call(
        "cc", "-std=c99", *STRICT, '-DNET_MLPERF="kws01"', "-c", "net_serial.c", "-o", "strict.o",
        folder=folder,
    )  # fmt: skip


def test_a_submission_has_the_layout_and_the_numbers(library, line, tmp_path, patience):
    # One label is wrong, so that the share of right ones is none of 0 and 1.
    labels = [int(expected(x).argmax()) for x in INPUTS]
    labels[0] = (labels[0] + 1) % 12
    with TinyDevice(line.place, open_port=lambda: line) as device:
        data = [np.asarray(x).tobytes() for x in INPUTS]
        outcomes = measure(device, data)
        windows = measure(device, data[:3], calls=20, warmups=2)
    entry = Entry("kws", library, windows, outcomes, labels, 61_000, device.log)
    odd = [Inference((score,), 1, 1) for score in (0.1, 0.4, 0.2, 0.9, 0.4)]
    sounds = Entry("ad", library.folder, outcomes=odd, labels=[0, 0, 0, 1, 1])
    facts = {"Board Name": "a computer"}
    for _ in range(2):  # what was written before is replaced
        home = submission(
            tmp_path / "sent", [entry, sounds], submitter="us", system="here", facts=facts
        )
    assert home == tmp_path / "sent/open/us"
    described = json.loads((home / "systems/here.json").read_text())
    assert described["Board Name"] == "a computer"
    assert described["Division"] == "Open"
    code = home / "code/keyword_spotting/here"
    assert (home / "code/anomaly_detection/here/net_serial.c").exists()
    assert (code / "net_serial.c").read_text() == (library.folder / "net_serial.c").read_text()
    results = home / "results/here"
    assert {folder.name for folder in (results / "kws").iterdir()} == {"performance", "accuracy"}
    assert "Top-1 = 83.3 % of 6 inputs" in (results / "kws/accuracy/results.txt").read_text()
    # Of six pairs the odd one is above in five, and equal in one.
    assert "AUC = 0.917 of 5 inputs" in (results / "ad/accuracy/results.txt").read_text()
    said = (results / "kws/performance/results.txt").read_text()
    assert re.search(r"Median throughput is [0-9.]+|inf inf./sec\.", said)
    assert "Instructions of a call: 61000" in said
    assert "> infer 20 2" in (results / "kws/performance/log.txt").read_text()
    measured = json.loads((results / "kws/performance/results.json").read_text())
    assert [window["calls"] for window in measured["windows"]] == [20] * 3
    (tmp_path / "sent/mine.txt").touch()
    with pytest.raises(FileExistsError, match=r"mine\.txt"):
        submission(tmp_path / "sent", [entry], submitter="us", system="here", facts=facts)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"submitter": "a/b"}, "submitter='a/b' becomes the name of a folder"),
        ({"facts": {"Board": "x"}}, "facts: 'Board' is no key of a system; they are Submitter"),
        ({"entries": []}, r"entries: each of ic, kws, vww, ad once at most, got \[\]"),
    ],
)
def test_a_wrong_submission_is_refused(change, said, library, tmp_path):
    chosen = {
        "entries": [Entry("kws", library)], "submitter": "us", "system": "here", "facts": {},
    } | change  # fmt: skip
    with pytest.raises(ValueError, match=said):
        submission(tmp_path / "sent", **chosen)
    with pytest.raises(ValueError, match="entry kws: 0 outcomes and 1 labels"):
        submission(
            tmp_path / "sent", [Entry("kws", library, labels=[1])], submitter="us",
            system="here", facts={},
        )  # fmt: skip


def test_a_library_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(NotADirectoryError, match=r"entry ad: .*gone is no library's folder"):
        submission(
            tmp_path / "sent", [Entry("ad", tmp_path / "gone")], submitter="us", system="here",
            facts={},
        )  # fmt: skip
    assert not (tmp_path / "sent").exists()


def test_inputs_have_the_published_sizes():
    assert {name: task.bytes for name, task in TASKS.items()} == {
        "ic": 3072, "kws": 490, "vww": 27648, "ad": 2560,
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cortex-m4", "riscv32"])
def test_an_emulated_board_answers_over_its_uart(target, tmp_path, patience):
    require("arm-none-eabi-gcc", "qemu-system-arm")
    require("riscv64-unknown-elf-gcc", "qemu-system-riscv32")
    # A nanosecond an instruction, which mcycle counts; SysTick counts emulated time at 25 MHz.
    flags = ["-DSERIAL_HERTZ=1000000000"] if target == "riscv32" else []
    library = firmware(tmp_path, target, flags=flags)
    command = emulation(target, library.target, library.folder / "firmware")
    at = command.index("-serial")
    uart = ["-chardev", "stdio,id=uart,signal=off", "-serial", "chardev:uart"]
    line = Line([*command[:at], *uart, *command[at + 2 :], "-icount", "shift=0"])
    line.to_board = noise(0, lost=0.0002, changed=0.0002)
    try:
        with TinyDevice(line.place, open_port=lambda: line) as device:
            for x in INPUTS:
                answer = device.infer(np.asarray(x).tobytes(), calls=50)
                np.testing.assert_allclose(answer.results, expected(x), atol=6e-4)
            line.reset()
            assert device.model == "kws01"
    finally:
        line.end()
    # The oracle: qemu's own count of instructions.
    counted = count_instructions(library, target).total
    assert answer.microseconds * 1000 / 50 == pytest.approx(counted, rel=0.2)
