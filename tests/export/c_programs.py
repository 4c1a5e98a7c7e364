"""What tests of C libraries share: functions, tools that may be missing, C programs."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

STRICT = ("-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror")


def everything(params, x, key, flags):
    """A loop, a branch, noise, views, results that are arguments, and most dtypes."""

    def cell(state, row):
        state = jnp.tanh(row @ params["w"] + state)
        return state, state.sum()

    last, sums = jax.lax.scan(cell, jnp.zeros(6), x)
    _, count = jax.lax.while_loop(
        lambda s: s[0] < 50.0, lambda s: (s[0] * 1.7 + 1.0, s[1] + 1), (jnp.abs(x).sum(), 0)
    )
    chosen = jax.lax.cond(flags[0], lambda v: jnp.sort(v), lambda v: -v, last)
    noise = jax.random.normal(jax.random.wrap_key_data(key), (5,))
    return {
        "flat": x.reshape(-1),
        "again": [x, sums, sums],
        "count": count,
        "chosen": chosen,
        "noise": noise,
        "half": (x * 3).astype(jnp.float16),
        "brain": (x * 3).astype(jnp.bfloat16),
        "bytes": (x * 30).astype(jnp.int8),
        "not": jnp.logical_not(flags),
        "spectrum": jnp.abs(jnp.fft.fft(x[:, :4])),
        "constant": jnp.arange(7) ** 2 + jnp.array([3, 1, 4, 1, 5, 9, 2]),
        "weights": params["w"],
    }


def arguments():
    """Arguments of `everything`."""
    x = jax.random.normal(jax.random.key(0), (9, 8))
    params = {"w": jax.random.normal(jax.random.key(1), (8, 6))}
    key = jax.random.key_data(jax.random.key(2))
    return params, x, key, jnp.array([True, False, True])


def require(*commands: str) -> None:
    """Skip a test whose tools are missing; .ci/install-arm.sh has the packages."""
    missing = [command for command in commands if shutil.which(command) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not found")


def call(*command: object, folder: Path) -> str:
    """What a command prints; that it succeeds."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "warning" not in done.stderr, done.stderr
    return done.stdout


def instructions(folder: Path) -> Sequence[str]:
    """The commands that a library's README says its example is built and run with."""
    text = (folder / "README.md").read_text().partition("replays a recorded call")[2]
    return re.findall(r"^    (.+)$", text, re.MULTILINE)
