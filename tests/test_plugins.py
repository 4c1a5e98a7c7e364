"""Boards, targets and doors that another installed package brings by its entry points."""

import dataclasses
import sys
import types

import jax
import numpy as np
import pytest
from jaxeff_export.boards import BoardError, LocalBoard, make_board
from jaxeff_export.targets import PROCESSORS, TargetError, processor_of, resolve_target

from jaxeff import functional, restore
from jaxeff.core import plugins

POINTS = """
[jaxeff.boards]
probe = other_package:board
stump = other_package:no_board

[jaxeff.targets]
stm32h7 = other_package:TARGET

[jaxeff.doors]
other_package = other_package:door
"""


class Probe(LocalBoard):
    """A board at a place."""

    def __init__(self, place):
        super().__init__()
        self.name = f"probe at {place}"


class Model:
    """A model of a library that jaxeff doesn't know."""

    weights = np.ones((3, 2), np.float32)


def door(model, *args):
    return lambda params, x: x @ params["dense"]["kernel"], {"dense": {"kernel": model.weights}}


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed package with plug-ins: metadata on the path, and a module."""
    information = tmp_path / "other_package-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: other-package\nVersion: 1\n"
    )
    (information / "entry_points.txt").write_text(POINTS)
    target = dataclasses.replace(PROCESSORS["cortex-m7"], name="stm32h743", mhz=480)
    module = types.ModuleType("other_package")
    module.__dict__.update(
        board=Probe, no_board=str.upper, door=door, Model=Model, TARGET=target
    )  # fmt: skip
    monkeypatch.setattr(Model, "__module__", "other_package.models")
    monkeypatch.setitem(sys.modules, "other_package", module)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_a_board_of_a_package_is_made_by_its_name(package):
    assert make_board("probe:/dev/ttyACM0").name == "probe at /dev/ttyACM0"
    with pytest.raises(BoardError, match="returned no Board, but 'X'"):
        make_board("stump:x")
    with pytest.raises(BoardError, match="probe:<place>, stump:<place>"):
        make_board("nothing")


def test_a_target_of_a_package_is_resolved_by_its_name(package):
    target = resolve_target("stm32h7")
    assert processor_of(target) == dataclasses.replace(
        PROCESSORS["cortex-m7"], name="stm32h743", mhz=480
    )
    with pytest.raises(TargetError, match="stm32h7"):
        resolve_target("stm32h8xyz")


def test_a_model_goes_through_the_door_of_a_package(package):
    f, params = functional(Model())
    x = jax.numpy.ones((4, 3))
    np.testing.assert_array_equal(jax.jit(f)(params, x), np.full((4, 2), 3.0))
    with pytest.raises(ValueError, match="dense/kernel"):
        f({"dense": {"kernel": np.ones((2, 2), np.float32)}}, x)
    with pytest.raises(TypeError, match="without method, keyed or mutable"):
        functional(Model(), mutable=True)
    with pytest.raises(TypeError, match="reads models and writes none"):
        restore(Model(), params)


def test_two_packages_with_one_name_are_told_apart(package):
    second = package / "third-1.0.dist-info"
    second.mkdir()
    (second / "METADATA").write_text("Metadata-Version: 2.1\nName: third\nVersion: 1\n")
    (second / "entry_points.txt").write_text("[jaxeff.boards]\nprobe = third:board\n")
    with pytest.raises(ValueError, match="two installed packages name 'probe'"):
        plugins("jaxeff.boards")


def test_without_plugins_errors_are_as_before():
    with pytest.raises(TypeError, match="must be a module of Flax"):
        functional(Model())
