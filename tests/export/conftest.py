"""The ARM tools and the emulated board, for tests marked ``arm``.

Where the tools are missing those tests are skipped with the reason; with ``JAXEFF_REQUIRE_ARM=1``
(set where the tools ought to be installed) they fail instead, so that nobody mistakes a skipped
check for a passed one.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from jaxeff_export import Bundle, deploy
from jaxeff_export.boards import BoardError, EmulatedBoard, emulated
from jaxeff_export.target import resolve_target
from jaxeff_export.toolchain import ToolchainError, find_emulator, find_linker

# pytest's importlib mode puts nothing on the path; the modules that tests of this room share do
# have to be found.
sys.path.insert(0, str(Path(__file__).parent))


def _unavailable(reason: str) -> NoReturn:
    if os.environ.get("JAXEFF_REQUIRE_ARM") == "1":
        pytest.fail(f"JAXEFF_REQUIRE_ARM=1, but {reason}", pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def deployed_mlp(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A small network compiled for this machine, not to be damaged."""
    from small_network import inputs, mlp, parameters

    path = tmp_path_factory.mktemp("deployed") / "mlp"
    return deploy(mlp, (parameters(), inputs()), path=path)


@pytest.fixture(scope="session")
def arm_linker() -> str:
    """The aarch64 cross linker, or a skip."""
    try:
        return find_linker(resolve_target("cortex-a72"))
    except ToolchainError as error:
        _unavailable(str(error))


@pytest.fixture(scope="session")
def mlp_for_a72(arm_linker: str, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The same network compiled for a Cortex-A72, as read back from its folder."""
    from small_network import inputs, mlp, parameters

    path = tmp_path_factory.mktemp("deployed") / "mlp-a72"
    deploy(mlp, (parameters(), inputs()), target="cortex-a72", path=path)
    return Bundle.load(path)


@pytest.fixture(scope="session")
def emulator() -> None:
    """A prepared emulated board, or a skip."""
    try:
        find_emulator()
        emulated.prepare(progress=None)
    except (ToolchainError, BoardError) as error:
        _unavailable(str(error))


@pytest.fixture(scope="session")
def emulated_board(emulator: None) -> Iterator[EmulatedBoard]:
    """One running Cortex-A72 for all tests of a session."""
    with EmulatedBoard("cortex-a72") as board:
        yield board
