"""Place instances on nodes of the network (methods.md D5, D6). Pure: dataclasses in, tables out.

``problem`` defines the problem and its words. ``algorithm4`` is the scheduler of seed 003 for
scale-out and scale-in. ``topology_blind`` is the baseline. ``program`` and ``exact`` are the
integer program. ``measures`` scores placements.
"""

from planner.optimizer.placement.algorithm4 import run_algorithm4
from planner.optimizer.placement.exact import place_exact
from planner.optimizer.placement.measures import (
    Measures,
    Units,
    measure_placement,
    measure_units,
    service_share,
)
from planner.optimizer.placement.problem import Part, Placement, PlacementProblem, Role, Service
from planner.optimizer.placement.topology_blind import place_blind
