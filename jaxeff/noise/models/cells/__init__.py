"""Memory cells that hold weights, with the constants that were measured of them."""

from jaxeff.noise.models.cells._cell import MemoryCell
from jaxeff.noise.models.cells._charge_trap import ChargeTrap
from jaxeff.noise.models.cells._phase_change import PhaseChange
from jaxeff.noise.models.cells._programmed import ProgrammedCell
from jaxeff.noise.models.cells._resistive import ResistiveRAM
from jaxeff.noise.models.cells._static_ram import StaticRAM

__all__ = ["ChargeTrap", "MemoryCell", "PhaseChange", "ProgrammedCell", "ResistiveRAM", "StaticRAM"]
