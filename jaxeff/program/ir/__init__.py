"""The program's data structures: graph, layers, axes, primitives."""

from jaxeff.program.ir import _axes as axes  # noqa: F401
from jaxeff.program.ir import _primitives as primitives  # noqa: F401
from jaxeff.program.ir._axes import Axes as Axes
from jaxeff.program.ir._axes import Contraction as Contraction
from jaxeff.program.ir._axes import extent as extent
from jaxeff.program.ir._channels_last import channels_last as channels_last
from jaxeff.program.ir._channels_last import convolved_channels_last as convolved_channels_last
from jaxeff.program.ir._channels_last import turns as turns
from jaxeff.program.ir._graph import DRAWN_TAG as DRAWN_TAG
from jaxeff.program.ir._graph import KINDS as KINDS
from jaxeff.program.ir._graph import SPREAD_TAG as SPREAD_TAG
from jaxeff.program.ir._graph import Graph as Graph
from jaxeff.program.ir._graph import Layer as Layer
from jaxeff.program.ir._graph import Node as Node
from jaxeff.program.ir._graph import Program as Program
from jaxeff.program.ir._graph import Role as Role
from jaxeff.program.ir._graph import Value as Value
from jaxeff.program.ir._graph import branch_operands as branch_operands
from jaxeff.program.ir._graph import flatten as flatten
from jaxeff.program.ir._graph import form_of as form_of
from jaxeff.program.ir._graph import making as making
from jaxeff.program.ir._graph import noted as noted
from jaxeff.program.ir._graph import run_nodes as run_nodes
from jaxeff.program.ir._primitives import FACTS as FACTS
from jaxeff.program.ir._primitives import Facts as Facts
from jaxeff.program.ir._primitives import facts as facts
from jaxeff.program.ir._products_ahead import products_ahead as products_ahead
from jaxeff.program.ir._signature import Along as Along
from jaxeff.program.ir._signature import Operand as Operand
from jaxeff.program.ir._signature import OperationFamily as OperationFamily
from jaxeff.program.ir._signature import PlacedPart as PlacedPart
from jaxeff.program.ir._signature import Relation as Relation
from jaxeff.program.ir._signature import Signature as Signature
from jaxeff.program.ir._signature import Window as Window
from jaxeff.program.ir._signature import signature as signature
from jaxeff.program.ir._walk import Scan as Scan
from jaxeff.program.ir._walk import While as While
from jaxeff.program.ir._walk import compute as compute
from jaxeff.program.ir._walk import computed_at_once as computed_at_once
from jaxeff.program.ir._walk import entering as entering
from jaxeff.program.ir._walk import fixed_point as fixed_point
from jaxeff.program.ir._walk import inlined as inlined
from jaxeff.program.ir._walk import inside as inside
from jaxeff.program.ir._walk import repetitions as repetitions
from jaxeff.program.ir._walk import walk as walk
from jaxeff.program.ir._walk import walk_nodes as walk_nodes
