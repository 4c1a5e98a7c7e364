"""The package's public names, which are found when they are asked for."""

import ast
import pkgutil
from pathlib import Path

import jaxeff_export
import pytest


def test_public_names_exist_and_are_listed():
    for name in jaxeff_export.__all__:
        assert getattr(jaxeff_export, name) is not None
    assert set(jaxeff_export.__all__) <= set(dir(jaxeff_export))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        jaxeff_export.nonsense  # noqa: B018


def test_editors_see_the_names_that_there_are():
    tree = ast.parse(Path(jaxeff_export.__file__).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {(line.module, name.name) for line in block.body for name in line.names}
    found = {
        (f"jaxeff_export.{module}", name)
        for module, names in jaxeff_export._MODULES.items()
        for name in names
    }
    assert seen == found


def test_no_public_name_is_hidden_by_a_module():
    """Importing a module sets it on its package, in the place of a function of that name."""
    modules = {module.name for module in pkgutil.iter_modules(jaxeff_export.__path__)}
    assert not modules & set(jaxeff_export.__all__)
