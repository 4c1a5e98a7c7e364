"""Tuning: what is measured is kept, what is kept is found again, and nothing gets slower."""

import dataclasses
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import interrupted_tuning
import jax.numpy as jnp
import numpy as np
import pytest
import tvm
import tvm_ffi
from interrupted_tuning import TARGET, Bench, layer, session
from jax import lax
from jaxeff_export import Board, BoardError, Bundle, TuningError, deploy, tune
from jaxeff_export.boards import BoardLost
from jaxeff_export.bundle import NamedTarget, lift
from jaxeff_export.cli import app
from jaxeff_export.compiler import (
    Machine,
    compilation_target,
    default_schedule,
    digest_of,
    fused_kernels,
    tuned_schedules,
)
from jaxeff_export.schedules import TuningDatabase
from jaxeff_export.schedules._database import HEADER
from jaxeff_export.tuning import _measuring as checking
from jaxeff_export.tuning import _measuring as measuring
from jaxeff_export.tuning._measuring import held_interrupts
from jaxeff_export.tuning._session import chosen
from jaxeff_export.tuning._spaces import select_kernels, tiles
from small_network import inputs, mlp, parameters
from typer.testing import CliRunner

from jaxeff.store import read_lines

PLAIN = tvm.target.Target({"kind": "llvm"})


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    path = tmp_path_factory.mktemp("untuned") / "mlp"
    return deploy(mlp, (parameters(), inputs()), target=TARGET, path=path)


@pytest.fixture(scope="module")
def fused(bundle):
    return fused_kernels(
        lift(bundle.example, NamedTarget.of_manifest(bundle.manifest)).main,
        compilation_target(TARGET),
    )


@pytest.fixture(scope="module")
def kernel():
    return layer()


@pytest.fixture(scope="module")
def tuned_folder(tmp_path_factory, kernel):
    """A database in which every candidate is twice as fast as the default schedule."""
    folder = tmp_path_factory.mktemp("tuning") / "database"
    session(folder, Bench(first=2e-3), 8).tune(kernel)
    return folder


@pytest.fixture
def copy(tuned_folder, tmp_path):
    """That database, to damage."""
    return shutil.copytree(tuned_folder, tmp_path / "copy")


def one(folder, name):
    (path,) = folder.rglob(name)
    return path


def test_a_faster_schedule_is_used_for_its_kernel_and_target_only(tuned_folder, kernel, fused):
    database = TuningDatabase(tuned_folder)
    scheduled = tuned_schedules(database, TARGET)(kernel.function)
    assert not tvm_ffi.structural_equal(scheduled.body, kernel.function.body)
    assert "tirx.is_scheduled" in scheduled.attrs
    for other in ({**TARGET, "num-cores": 2}, {**TARGET, "mcpu": "x86-64"}):
        assert tuned_schedules(database, other)(kernel.function).same_as(kernel.function)
    (stranger, *_) = select_kernels(fused, None, [])
    assert tuned_schedules(database, TARGET)(stranger.function).same_as(stranger.function)


@pytest.mark.parametrize(
    ("times", "winner"),
    [((1.0, 0.5, 0.4), "b"), ((1.0, 1.1, 2.0), None), ((1.0, 0.99), None), ((1.0,), None)],
)
def test_a_schedule_is_chosen_only_where_it_beats_the_default(times, winner):
    choice = chosen("kernel", "default", ["a", "b"][: len(times) - 1], times, 3, "tiles")
    assert choice.trace == winner
    assert choice.microseconds <= choice.default_microseconds


def test_a_choice_against_another_default_schedule_is_made_again(copy, kernel):
    choices = one(copy, "choices.jsonl")
    (choice,) = read_lines(choices)
    choices.write_text(json.dumps(choice | {"default": "of an older version"}) + "\n")
    database = TuningDatabase(copy)
    assert tuned_schedules(database, TARGET)(kernel.function).same_as(kernel.function)
    assert session(copy, Bench(first=2e-3), 8).tune(kernel).default == choice["default"]
    assert not tuned_schedules(database, TARGET)(kernel.function).same_as(kernel.function)


def test_a_kernel_whose_candidates_all_fail_keeps_its_default(tmp_path, kernel):
    choice = session(tmp_path, Bench(first=1e-3, others=None), 4).tune(kernel)
    assert (choice.trace, choice.trials) == (None, 4)


def test_a_default_that_cannot_be_measured_is_an_error_that_names_the_kernel(tmp_path, kernel):
    with pytest.raises(TuningError, match=f"{kernel.name} cannot be measured: the test says so"):
        session(tmp_path, Bench(first=None), 4).tune(kernel)


@pytest.mark.process
def test_a_killed_session_loses_only_the_candidate_it_was_measuring(tmp_path, kernel):
    program = [sys.executable, interrupted_tuning.__file__, str(tmp_path)]
    assert subprocess.run(program, check=False).returncode == -signal.SIGKILL
    before = read_lines(one(tmp_path, "records.jsonl"))
    assert len(before) == 5
    bench = Bench(first=1e-3)
    assert session(tmp_path, bench, 8).tune(kernel).trials == 8
    after = read_lines(one(tmp_path, "records.jsonl"))
    assert after[:5] == before
    assert len({json.dumps(record[1][0]) for record in after}) == 8


def test_a_finished_kernel_is_not_measured_again(tuned_folder, kernel):
    bench = Bench(first=1e-3)
    choice = session(tuned_folder, bench, 8).tune(kernel)
    assert choice.trace is not None
    assert not bench.built


def test_a_line_cut_short_is_set_aside_and_the_rest_goes_on(copy, kernel):
    records, choices = one(copy, "records.jsonl"), one(copy, "choices.jsonl")
    content = read_lines(records)
    for path in (records, choices):
        os.truncate(path, path.stat().st_size - 20)
    database = TuningDatabase(copy)
    assert tuned_schedules(database, TARGET)(kernel.function).same_as(kernel.function)
    session(copy, Bench(first=2e-3), 9).tune(kernel)
    assert read_lines(records)[:7] == content[:7]
    assert len(read_lines(records)) == 9
    for path in (records, choices):
        assert path.with_name(path.name + ".cut").stat().st_size > 0
    assert len(read_lines(choices)) == 1


def test_a_line_that_lacks_only_its_end_is_kept(copy, kernel):
    records = one(copy, "records.jsonl")
    os.truncate(records, records.stat().st_size - 1)
    TuningDatabase(copy).records(TARGET, "tiles")
    assert len(read_lines(records)) == 8
    assert not list(copy.rglob("*.cut"))


def test_damage_elsewhere_is_one_clear_error(copy):
    records = one(copy, "records.jsonl")
    lines = records.read_bytes().splitlines(keepends=True)
    records.write_bytes(b"".join([*lines[:2], lines[2][:50] + b"\n", *lines[3:]]))
    with pytest.raises(TuningError, match=r"line 3 of .*records.jsonl is damaged"):
        TuningDatabase(copy).records(TARGET, "tiles")
    records.write_bytes(b"".join(lines))
    one(copy, "workloads.jsonl").write_bytes(b"")
    with pytest.raises(TuningError, match="not of one database"):
        TuningDatabase(copy).records(TARGET, "tiles")


def test_a_database_of_another_version_or_none_is_refused(copy, tmp_path):
    header = copy / HEADER
    content = json.loads(header.read_text())
    for changed, message in (
        ({"apache-tvm": "0.1.0"}, "made by TVM 0.1.0, this is TVM"),
        ({"format_version": 99}, "format jaxeff-tuning 99"),
    ):
        header.write_text(json.dumps(content | changed))
        with pytest.raises(TuningError, match=message):
            deploy(mlp, (parameters(), inputs()), database=copy)
    header.unlink()
    with pytest.raises(TuningError, match="is no tuning database"):
        TuningDatabase(copy)
    with pytest.raises(TuningError, match="is no tuning database"):
        TuningDatabase(Path(__file__))
    assert content["apache-tvm"] == metadata.version("apache-tvm")
    assert not TuningDatabase(tmp_path / "new").choices(TARGET)


def test_a_database_in_use_is_refused(tmp_path, bundle):
    database = TuningDatabase(tmp_path / "database")
    with database.locked(TARGET), pytest.raises(TuningError, match="another process is tuning"):
        tune(bundle, database.path)


def test_layers_are_tuned_by_default_and_others_by_name(fused):
    def names(include, exclude=()):
        return {kernel.name for kernel in select_kernels(fused, include, exclude)}

    layers = names(None)
    assert len(layers) == 3
    assert all("matmul" in name for name in layers)
    assert layers < names(["*"])
    assert names(["*"], ["*matmul*"]) == names(["*"]) - layers
    assert names([min(layers)]) == {min(layers)}
    one = min(layers)
    assert names([one], ["*matmul*"]) == {one}  # the more specific pattern, not the later list
    assert names(["*matmul*", "*atmul*"], [one]) == layers - {one}
    with pytest.raises(TuningError, match=r"'conv\*' matches no kernel. The kernels are"):
        names(["conv*"])
    with pytest.raises(TuningError, match="equally specific at the kernel"):
        names(["*matmul*"], ["*matmul**"])
    with pytest.raises(TuningError, match="both asked for and left out"):
        names(["*matmul*"], ["*matmul*"])
    with pytest.raises(TuningError, match="nothing is left"):
        names(None, ["*"])


def test_convolutions_whose_results_are_turned_are_tuned_too(tmp_path):
    def f(w, x):
        numbers = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=numbers)

    target = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "skylake-avx512"}
    target |= {"num-cores": 1}
    example = (jnp.ones((5, 5, 1, 6)), jnp.ones((1, 28, 28, 1)))
    bundle = deploy(f, example, target, tmp_path / "bundle")
    lifted = lift(bundle.example, NamedTarget.of_manifest(bundle.manifest)).main
    (kernel,) = select_kernels(fused_kernels(lifted, compilation_target(target)), None, [])
    default = default_schedule(kernel, Machine.of(compilation_target(target)))
    assert "transform_layout" in str(default.trace)  # of which MetaSchedule writes no record
    plain = tvm.s_tir.Schedule(kernel.module)
    again = default_schedule(kernel, Machine.of(compilation_target(target)))
    keys = [digest_of(kernel, schedule) for schedule in (default, again, plain)]
    assert keys[0] == keys[1] != keys[2]


def test_tiles_fill_the_registers_and_no_more():
    machine = Machine(lanes=8, registers=16, cores=1)
    tiling = tiles([4, 6, 24], machine, 2)
    assert (
        len({(tuple(tile.rows), tile.vectors, tile.width) for tile in tiling}) == len(tiling) > 20
    )
    for tile in tiling:
        assert all(n % rows == 0 for n, rows in zip((4, 6), tile.rows, strict=True))
        assert 24 % tile.columns == 0
        assert 2 * tile.vectors * np.prod(tile.rows) <= 16
    assert tiling[0].width == 8


@pytest.mark.slow
def test_a_tuned_bundle_computes_the_same_and_its_database_serves_deploy(bundle, tmp_path):
    database, folder = tmp_path / "database", tmp_path / "tuned"
    arguments = ["tune", bundle.folder, "--database", database, "--trials", 2, "--output", folder]
    arguments += ["--operators", "*matmul*", "--exclude", "*matmul1*"]
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.stderr
    assert "(2 candidates)" in result.stdout
    assert Bundle.load(folder).check().passed
    before = {path: path.read_bytes() for path in database.rglob("*.jsonl")}
    assert len(before) == 3
    again = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert again.exit_code == 0
    assert {path: path.read_bytes() for path in database.rglob("*.jsonl")} == before


def test_deploying_with_a_database_uses_its_schedules(tuned_folder, kernel, tmp_path):
    arguments = interrupted_tuning.small_layer()
    plain = deploy(*arguments, target=TARGET)
    tuned = deploy(*arguments, target=TARGET, database=tuned_folder)
    assert tuned.check().passed
    assert tuned.manifest.files["library.so"] != plain.manifest.files["library.so"]


def test_boards_that_cannot_tell_are_refused(bundle, tmp_path):
    target = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72"}
    manifest = dataclasses.replace(bundle.manifest, target=target, target_name="cortex-a72")
    foreign = Bundle(bundle.folder, manifest)
    with pytest.raises(TuningError, match=r"cannot be measured on local .*rpc://"):
        tune(foreign, tmp_path / "new")
    with pytest.raises(BoardError, match=r"emulated.*cannot tune.*rpc://"):
        tune(foreign, tmp_path / "new", board="emulated")
    with pytest.raises(TuningError, match="unknown space 'gpu'"):
        tune(bundle, tmp_path / "new", space="gpu")
    with pytest.raises(ValueError, match="trials must be at least 1"):
        tune(bundle, tmp_path / "new", trials=0)
    assert not (tmp_path / "new").exists()


def test_candidates_that_compute_something_else_are_refused(kernel):
    module = tvm.compile(checking.entry_module(kernel.module), target=PLAIN).jit()
    draws = checking.draws_of(kernel)
    assert checking.timed(module, tvm.cpu(), draws) > 0
    for wrong in (np.nan, 1e3):
        spoiled = np.array(draws[1][1][2])
        spoiled.flat[0] = wrong
        with pytest.raises(checking.CandidateError, match="something else"):
            checking.timed(module, tvm.cpu(), [draws[0], (draws[1][0], {2: spoiled})])


@pytest.mark.process
def test_an_interrupt_waits_for_tvm_and_keeps_its_name():
    reached = []

    def interrupted():
        with held_interrupts():
            signal.raise_signal(signal.SIGINT)
            reached.append(True)
            raise RuntimeError("what TVM makes of processes that were interrupted")

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background: ignored
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert reached
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


class Flaky(Board):
    """This process, behind a connection that is lost as often as asked for."""

    name = "rpc://flaky"

    def __init__(self, losses):
        self.losses = losses

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    device = tvm.cpu()

    def load(self, library):
        self.losses -= 1
        if self.losses >= 0:
            raise RuntimeError("gone")
        return tvm.runtime.load_module(str(library))

    def failure(self, error, started):
        return BoardLost(str(error))

    def reconnect(self):
        if self.losses > 2:
            raise BoardLost("gone for good")


def test_a_lost_board_is_tried_again_and_a_candidate_that_loses_it_is_dropped(kernel, tmp_path):
    library = tmp_path / "kernel.so"
    tvm.compile(checking.entry_module(kernel.module), target=PLAIN).export_library(str(library))
    (tmp_path / measuring.ARGUMENTS).write_bytes(pickle.dumps(checking.draws_of(kernel)))
    assert measuring.remote_timer(Flaky(1), tmp_path)(library) > 0
    with pytest.raises(checking.CandidateError, match="gone"):
        measuring.remote_timer(Flaky(2), tmp_path)(library)
    with pytest.raises(BoardLost, match="gone for good"):
        measuring.remote_timer(Flaky(5), tmp_path)(library)
