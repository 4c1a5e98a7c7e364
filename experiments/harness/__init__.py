"""What every study shares, so that a new one costs its science only.

A `Study` names three sizes, runs, judges and draws. The harness has the command line, which comes
from the settings' dataclass, the rows that outlive a kill, the JSON, tables, checks and figures.
"""

from experiments.harness.claims import Claim as Claim
from experiments.harness.claims import Rule as Rule
from experiments.harness.claims import above as above
from experiments.harness.claims import at_least as at_least
from experiments.harness.claims import at_most as at_most
from experiments.harness.claims import below as below
from experiments.harness.claims import equals as equals
from experiments.harness.claims import near as near
from experiments.harness.claims import true as true
from experiments.harness.command import SELECTS as SELECTS
from experiments.harness.command import Count as Count
from experiments.harness.command import Least as Least
from experiments.harness.command import Refused as Refused
from experiments.harness.command import choose as choose
from experiments.harness.means import averaged as averaged
from experiments.harness.means import error as error
from experiments.harness.means import grouped as grouped
from experiments.harness.means import mean as mean
from experiments.harness.plots import Bars as Bars
from experiments.harness.plots import Curves as Curves
from experiments.harness.plots import Dots as Dots
from experiments.harness.plots import Panel as Panel
from experiments.harness.plots import Panels as Panels
from experiments.harness.plots import Plot as Plot
from experiments.harness.report import Report as Report
from experiments.harness.report import Row as Row
from experiments.harness.rows import Chosen as Chosen
from experiments.harness.rows import Selection as Selection
from experiments.harness.rows import average as average
from experiments.harness.rows import every as every
from experiments.harness.rows import extra as extra
from experiments.harness.rows import having as having
from experiments.harness.rows import least as least
from experiments.harness.rows import means as means
from experiments.harness.rows import most as most
from experiments.harness.rows import plus_minus as plus_minus
from experiments.harness.rows import summary as summary
from experiments.harness.rows import where as where
from experiments.harness.run import Found as Found
from experiments.harness.run import Run as Run
from experiments.harness.study import Listing as Listing
from experiments.harness.study import Part as Part
from experiments.harness.study import Study as Study
from jaxeff.core import Table as Table
