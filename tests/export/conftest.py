"""Deployed networks and the emulated board."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from jaxeff_export import Bundle, deploy
from jaxeff_export.boards import EmulatedBoard

# pytest's importlib mode puts nothing on the path; the modules that tests of this room share do
# have to be found.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def deployed_mlp(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A small network compiled for this machine, not to be damaged."""
    from small_network import inputs, mlp, parameters

    path = tmp_path_factory.mktemp("deployed") / "mlp"
    return deploy(mlp, (parameters(), inputs()), path=path)


@pytest.fixture(scope="session")
def mlp_for_a72(arm_linker: str, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The same network compiled for a Cortex-A72, as read back from its folder."""
    from small_network import inputs, mlp, parameters

    path = tmp_path_factory.mktemp("deployed") / "mlp-a72"
    deploy(mlp, (parameters(), inputs()), target="cortex-a72", path=path)
    return Bundle.load(path)


@pytest.fixture(scope="session")
def emulated_board(emulator: None) -> Iterator[EmulatedBoard]:
    """One running Cortex-A72 for all tests of a session."""
    with EmulatedBoard("cortex-a72") as board:
        yield board
