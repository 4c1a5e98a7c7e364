"""Targets and tools: named ones resolve, unknown ones are refused with the way out."""

import platform

import pytest
from jaxeff_export import ARM_TARGETS, TargetError, ToolchainError, resolve_target, target_names
from jaxeff_export.targets import (
    arithmetic_features,
    find_emulator,
    find_linker,
    normalized_machine,
    target_machine,
)


def test_the_host_names_its_processor():
    host = resolve_target("host")
    assert host["mcpu"] not in ("", "generic")
    assert host["num-cores"] >= 1
    assert target_machine(host) == normalized_machine(platform.machine())


@pytest.mark.parametrize("name", ARM_TARGETS)
def test_arm_targets(name):
    target = resolve_target(name)
    assert target["mcpu"] == name
    assert target_machine(target) == "aarch64"
    assert "neon" in arithmetic_features(target)
    target["mattr"].clear()  # a fresh copy each time
    assert resolve_target(name)["mattr"]


def test_newer_cores_have_more():
    features = [arithmetic_features(resolve_target(f"cortex-a{core}")) for core in (53, 72, 76)]
    assert features[0] == features[1] < features[2]
    assert "dotprod" in features[2]


def test_a_dict_is_checked_and_copied():
    attributes = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a57"}
    resolved = resolve_target(attributes)
    assert resolved == attributes
    assert resolved is not attributes


@pytest.mark.parametrize(
    ("chip", "core"),
    [("STM32F407", "cortex-m4"), ("stm32wba55", "cortex-m33"), ("raspberry-pi-5", "cortex-a76")],
)
def test_a_chip_is_told_its_core(chip, core):
    with pytest.raises(TargetError, match=f"{chip}.*such a chip is a '{core}'"):
        resolve_target(chip)
    assert resolve_target(core)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("cortex-m23", "use one of " + ", ".join(target_names())),
        ({"kind": "llvm", "mcpu": "cortex-z9", "mtriple": "aarch64-linux-gnu"}, "cortex-z9"),
        ({"kind": "cuda"}, "targets are CPUs, of kind 'llvm', not 'cuda'"),
        (
            {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mattr": ["+abacus"]},
            "knows no feature '\\+abacus'",
        ),
        ({"kind": "llvm", "mattr": "+neon"}, "TVM refuses"),
        ({"kind": "llvm", "num-cores": 0}, "num-cores is 0; it must be positive"),
        ({"kind": "llvm", "colour": "red"}, "TVM refuses.*colour"),
        ({"mcpu": "cortex-a72"}, "TVM refuses"),
        ({"kind": "llvm", "mtriple": "abacus-linux-gnu"}, "no processor 'abacus'"),
    ],
)
def test_unknown_targets(target, message, capfd):
    with pytest.raises(TargetError, match=message):
        resolve_target(target)
    assert "mcpu" not in capfd.readouterr().err  # LLVM has nothing to add


def test_masked_instructions_are_switched_off(monkeypatch):
    """A virtual machine whose processor model promises more than its kernel reports."""
    plain = resolve_target("host")  # this machine's kernel may mask some already
    reported = "jaxeff_export.targets._target._reported_features"
    monkeypatch.setattr(reported, lambda: frozenset({"none"}))
    masked = resolve_target("host")
    promised = arithmetic_features({k: plain[k] for k in plain if k != "mattr"})
    assert promised
    assert set(masked["mattr"]) == {f"-{name}" for name in promised}
    assert not arithmetic_features(masked)


def test_missing_tools_say_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolchainError, match=r"qemu-aarch64 not found.*apt-get install qemu-user"):
        find_emulator()
    with pytest.raises(ToolchainError, match="apt-get install gcc-aarch64-linux-gnu"):
        find_linker(resolve_target("cortex-a72"))
    with pytest.raises(ToolchainError, match="no linker is known for powerpc64le"):
        find_linker({"kind": "llvm", "mtriple": "powerpc64le-linux-gnu"})
