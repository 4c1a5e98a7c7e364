"""Two processes of four devices each are one run: the numbers of one process, and nothing lost."""

import contextlib
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import jax
import job
import numpy as np
import pytest

pytestmark = pytest.mark.filterwarnings("ignore::jaxeff.bayes.ConvergenceWarning")


PROCESS = """
import sys
import jax
number, address, *rest = sys.argv[1:]
jax.distributed.initialize(address, num_processes=2, process_id=int(number))
import job
job.main(*rest)
"""
DOCUMENT = Path(__file__).parents[2] / "MACHINES.md"
LIMIT = 600
"""Seconds that a job may take on a machine that is busy with others; alone it takes some ten."""


def assert_same(a, b):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), a, b)


def free_port():
    """A port that nobody listens on."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return free.getsockname()[1]


def start(folder, *dying):
    """Both processes of a job; those of the given numbers die on the way."""
    address = f"localhost:{free_port()}"
    flags = os.environ["XLA_FLAGS"] + " --xla_force_host_platform_device_count=4"
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    rest = [["die"] if i in dying else [] for i in range(2)]
    return [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(i), address, folder / str(i), *rest[i]],
            env=environment, cwd=Path(job.__file__).parent, text=True,
            stderr=subprocess.PIPE, stdout=subprocess.DEVNULL,
        )
        for i in range(2)
    ]  # fmt: skip


@contextlib.contextmanager
def ended(processes):
    """None of them outlives the block."""
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("job")


@pytest.fixture(scope="module")
def killed(folder):
    """A job whose second process dies in the second chunk; what is left of its sweep."""
    with ended(start(folder, 1)) as (_, second):
        assert second.wait(LIMIT) == -signal.SIGKILL, second.communicate()[1]
    left = folder / "0" / "sweep"
    return {path.name: path.stat().st_mtime_ns for path in left.glob("[!.]*")}


@pytest.fixture(scope="module")
def resumed(folder, killed):
    """The same job, started again: what each process found and printed."""
    with ended(start(folder)) as processes:
        printed = [process.communicate(timeout=LIMIT)[1] for process in processes]
        assert [process.returncode for process in processes] == [0, 0], "\n".join(printed)
    names = [folder / str(i) / "found.pickle" for i in range(2)]
    return [pickle.loads(name.read_bytes()) for name in names], printed


def test_the_numbers_are_those_of_one_process_and_everywhere(resumed):
    first, second = resumed[0]
    alone = job.found(job.swept(), job.sampled(vectorized=False))
    assert_same({name: first[name] for name in alone}, jax.device_get(alone))
    jax.tree.map(np.testing.assert_array_equal, first, second)


def test_examples_that_are_cut_over_processes_train_as_in_one(folder, resumed):
    assert_same(resumed[0][0]["together"], job.trained_together())
    assert (folder / "0" / "fit.safetensors").exists()


def test_replicates_lie_on_the_devices_of_both(resumed):
    assert set(resumed[0][0]["parts"]) == {8}


def test_nothing_is_lost_and_nothing_trained_twice(folder, killed, resumed):
    running = "running-1-0-1x8.safetensors"
    assert set(killed) == {"0-0.safetensors", running}
    # The second chunk's checkpoint is of the epoch before the kill.
    rest = list(range(job.DYING_EPOCH, 3))
    assert [found["trained"] for found in resumed[0]] == [[rest, [0, 1, 2]]] * 2
    kept = {path.name: path.stat().st_mtime_ns for path in (folder / "0" / "sweep").iterdir()}
    assert set(kept) == {f"{row}-0.safetensors" for row in range(3)}
    assert kept["0-0.safetensors"] == killed["0-0.safetensors"]


def test_the_first_process_alone_writes_and_speaks(folder, resumed):
    assert {path.name for path in (folder / "1").iterdir()} == {"found.pickle"}
    assert ["replicate 15/15" in printed for printed in resumed[1]] == [True, False]


def test_what_the_first_process_refuses_all_refuse(resumed):
    for found in resumed[0]:
        assert "setting 'epochs' is 3 there and 4 here" in found["refused"]


def test_one_process_goes_on_where_two_stopped(folder, resumed, monkeypatch):
    def never(*_, **__):
        raise AssertionError("a chunk is trained again")

    monkeypatch.setattr(sys.modules["jaxeff.training._sweep"], "run_epochs", never)
    again = job.swept(folder / "0" / "sweep")
    jax.tree.map(np.testing.assert_array_equal, again._asdict(), resumed[0][0]["sweep"])


def test_chains_that_processes_cannot_share_evenly(monkeypatch):
    from types import SimpleNamespace

    from jaxeff.bayes.sampling._mcmc import _mesh

    devices = [SimpleNamespace(process_index=i) for i in (0, 0, 1, 1)]
    monkeypatch.setattr(jax, "devices", lambda: devices)
    with pytest.raises(ValueError, match="3 chains can't be spread evenly over 2 processes"):
        _mesh(3, None)


@pytest.mark.process
def test_the_documented_script_finds_in_two_processes_what_it_finds_in_one(tmp_path, monkeypatch):
    (script,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    (tmp_path / "two").mkdir()
    slurm = {"SLURM_JOB_ID": "1", "SLURM_STEP_NODELIST": "localhost", "SLURM_LOCALID": "0"}
    slurm |= {"SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "2", "JAX_PLATFORMS": "cpu"}
    slurm |= {"JAX_COORDINATOR_PORT": str(free_port())}
    keep = "import pickle; open(f'{jax.process_index()}.pickle', 'wb').write("
    keep += "pickle.dumps(jax.device_get((result.loss, chains.posterior.random))))"
    command = [sys.executable, "-W", "ignore", "-c", script + keep]
    processes = [
        subprocess.Popen(
            command, env=os.environ | slurm | {"SLURM_PROCID": str(number)}, text=True,
            cwd=tmp_path / "two", stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for number in range(2)
    ]  # fmt: skip
    monkeypatch.chdir(tmp_path)
    with ended(processes):
        one = {}
        exec(script, one)
        told = [process.communicate(timeout=LIMIT) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], told
    assert ["[[" in printed for printed, _ in told] == [True, False]  # the first one alone speaks
    alone = jax.device_get((one["result"].loss, one["chains"].posterior.random))
    for number in range(2):
        assert_same(pickle.loads((tmp_path / f"two/{number}.pickle").read_bytes()), alone)
