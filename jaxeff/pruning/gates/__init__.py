"""Gates: numbers that multiply channels, learnt with the parameters, and thresholded to a plan.

`Plan`, `masked` and `pruned` take booleans or gates alike; what is here draws and penalises gates.
"""

from jaxeff.pruning._gates import THRESHOLD as THRESHOLD
from jaxeff.pruning._gates import DropoutGates as DropoutGates
from jaxeff.pruning._gates import HardConcrete as HardConcrete
from jaxeff.pruning._gates import deterministic_gates as deterministic_gates
from jaxeff.pruning._gates import dropout_divergence as dropout_divergence
from jaxeff.pruning._gates import gate_location as gate_location
from jaxeff.pruning._gates import hard_concrete as hard_concrete
from jaxeff.pruning._gates import log_rate as log_rate
from jaxeff.pruning._gates import open_probability as open_probability
