"""Ensembles, from dropout to repulsive last layers: several predictions at the price of about one."""

from jaxeff.ensembles.ensemble import Ensemble, ensemble
from jaxeff.ensembles.members import Members

__all__ = ["Ensemble", "Members", "ensemble"]
