"""Zephyr: a module, which ``west`` or ``ZEPHYR_EXTRA_MODULES`` finds by ``zephyr/module.yml``."""

from __future__ import annotations

from collections.abc import Mapping

from jaxeff_export.clib.codegen import render
from jaxeff_export.clib.packages._package import Package


def zephyr(package: Package) -> Mapping[str, str | bytes]:
    """Writes the module's description, its CMake file and its option."""
    n, u = package.name, package.library.upper
    depends = []
    if package.core.startswith("cortex-"):
        # Arguments in registers of the floating-point unit are an interface of its own: without
        # it nothing would link.
        core = package.core.upper().replace("-", "_")
        depends = [f"\tdepends on CPU_{core}"]
        if "-mfloat-abi=hard" in package.flags:
            depends.append("\tdepends on FPU && FP_HARDABI")
    values = {"name": n, "NAME": u, "depends": depends, "made_for": package.library.made_for}
    return {
        f"zephyr/{file}": render(template, **values)
        for file, template in (
            ("module.yml", "zephyr_module.yml"),
            ("CMakeLists.txt", "zephyr.cmake"),
            ("Kconfig", "zephyr.Kconfig"),
        )
    }
