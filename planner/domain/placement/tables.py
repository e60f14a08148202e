"""Write a placement run as tables: network nodes, placed instances and units."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from planner.domain.placement.methods import State, States
from planner.optimizer.placement import PlacementProblem
from planner.optimizer.placement.problem import HIGH, TIERS
from simulation.arrays import IntArray
from simulation.topology import LEVELS


def tables_of(
    problem: PlacementProblem, by_method: Mapping[str, States]
) -> dict[str, pl.DataFrame]:
    """Return the tables of a placement run by name.

    ``nodes`` has one row per node of the network. ``instances`` has one row per method, state,
    instance and node. ``units`` has one row per method, state and unit.
    """
    tree = problem.topology
    nodes = pl.DataFrame(
        {
            "node": np.arange(len(tree)),
            "region": [tree.centres[c] for c in tree.centre],
            "s2": tree.s2,
            "s1": tree.s1,
            "rack": tree.rack,
            "priority": [TIERS[t] for t in problem.tiers[tree.s1]],
            "gpu": [tree.gpu_types[t] for t in tree.gpu],
            "gpus": tree.gpus,
        }
    )
    states = [
        (method, step, state)
        for method, states in by_method.items()
        for step, state in states.items()
    ]
    return {
        "nodes": nodes,
        "instances": pl.concat(
            _with_method_and_state(m, step, _instances(s)) for m, step, s in states
        ),
        "units": pl.concat(_with_method_and_state(m, step, _units(s)) for m, step, s in states),
    }


def _with_method_and_state(method: str, step: str, table: pl.DataFrame) -> pl.DataFrame:
    """Return the table with the columns ``method`` and ``state`` in front."""
    labels = pl.lit(method).alias("method"), pl.lit(step).alias("state")
    return table.select(*labels, pl.all())


def _instances(state: State) -> pl.DataFrame:
    """Return the table of placed instances in one state."""
    placement, services = state.placement, state.problem.services
    roles = [services[s].roles[r] for s, r in zip(placement.service, placement.role, strict=True)]
    parts = [role.parts[p].name for role, p in zip(roles, placement.part, strict=True)]
    return pl.DataFrame(
        {
            "service": _names(state, placement.service),
            "unit": placement.unit,
            "role": pl.Series([role.name for role in roles], dtype=pl.String),
            "part": pl.Series(parts, dtype=pl.String),
            "instance": placement.instance,
            "node": placement.node,
            "gpus": placement.gpus,
        }
    )


def _units(state: State) -> pl.DataFrame:
    """Return the table of placed units in one state."""
    units = state.measures.units
    return pl.DataFrame(
        {
            "service": _names(state, units.service),
            "unit": units.unit,
            "gpus": units.gpus,
            "within": pl.Series([LEVELS[level] for level in units.level], dtype=pl.String),
            "affinity_honoured": units.honoured,
            "split": units.split,
            "bandwidth_share": units.share,
            "fallback_gpus": units.fallback_gpus,
            "on_high_priority": units.tier == HIGH,
        }
    )


def _names(state: State, services: IntArray) -> pl.Series:
    return pl.Series([state.problem.services[s].name for s in services], dtype=pl.String)
