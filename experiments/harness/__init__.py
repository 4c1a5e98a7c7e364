"""What every study shares, so that a new one costs its science only.

A `Study` names three sizes, runs, judges and draws. The harness has the command line, which comes
from the settings' dataclass, the rows that outlive a kill, the JSON, tables, checks and figures.
"""

from experiments.harness.command import SELECTS as SELECTS
from experiments.harness.command import Least as Least
from experiments.harness.command import Refused as Refused
from experiments.harness.command import choose as choose
from experiments.harness.means import averaged as averaged
from experiments.harness.means import error as error
from experiments.harness.means import grouped as grouped
from experiments.harness.means import mean as mean
from experiments.harness.report import Report as Report
from experiments.harness.report import Row as Row
from experiments.harness.run import Found as Found
from experiments.harness.run import Run as Run
from experiments.harness.study import Study as Study
from jaxeff.core import Table as Table
