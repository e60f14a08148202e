"""Find the current, minimum and maximum replicas of each pool (model, region and GPU column)."""

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from planner.errors import ScenarioError
from planner.inputs.scenario.columns import SHOWN, Arrangements, Column
from planner.inputs.scenario.schema import Profile, Replicas, Scenario
from planner.schema_types import ROLES
from simulation.arrays import FloatArray, IntArray


class ReplicaLimits(NamedTuple):
    """Replicas of pools, ``[model, region, GPU column]``."""

    minimum: IntArray
    maximum: IntArray
    today: IntArray | None = None  # current replicas; None: not stated
    lent: IntArray | None = None  # None: none


def replica_limits(
    scenario: Scenario, fleet: Arrangements, capacity_gpus: IntArray, price: FloatArray
) -> ReplicaLimits:
    """Return the minimum, maximum, current and lent replicas of pools.

    ``capacity_gpus`` is ``[region, GPU type]``, and ``price`` ``[region, GPU column]`` is that of a
    GPU-hour. The scenario states one minimum per model and region. The cheapest arrangement gets
    it, or the cheapest prefill and the cheapest decode arrangement if disaggregated. Spot is used
    only without an alternative. A prefill pool without a possible decode pool has a maximum of 0,
    and vice versa.
    """
    columns = fleet.columns
    maximum = np.zeros((len(scenario.models), len(scenario.regions), len(columns)), np.int64)
    for (m, g), speed in fleet.speeds.items():
        maximum[m, :, g] = capacity_gpus[:, columns[g].gpu] // speed.tp
    minimum = np.zeros_like(maximum)
    for m, r in np.ndindex(maximum.shape[:2]):
        # A group has the columns of one role. The cheapest gets the minimum.
        for group in _usable_groups(maximum[m, r], columns):
            replica_usd = {g: price[r, g] * fleet.speeds[m, g].tp for g in group}
            cheapest = min(group, key=lambda g: (columns[g].spot, replica_usd[g]))
            minimum[m, r, cheapest] = min(scenario.fleet.minimum, maximum[m, r, cheapest])
    if not scenario.fleet.today:
        return ReplicaLimits(minimum, maximum)
    return _limits_with_today(scenario, fleet, minimum, maximum)


def _usable_groups(maximum: IntArray, columns: Sequence[Column]) -> list[list[int]]:
    """Return the groups of GPU columns that each need the minimum of a model in a region.

    These are the aggregated columns, or else the prefill columns and the decode columns. A prefill
    pool without a decode pool serves nothing, and vice versa: its ``maximum`` ``[column]`` becomes
    0.
    """
    usable: dict[str, list[int]] = {"both": [], "prefill": [], "decode": []}
    for g in np.flatnonzero(maximum).tolist():
        usable[columns[g].role].append(g)
    split = [usable["prefill"], usable["decode"]]
    if not all(split):
        maximum[usable["prefill"] + usable["decode"]] = 0
        split = []
    return [usable["both"]] if usable["both"] else split


def _limits_with_today(
    scenario: Scenario, fleet: Arrangements, minimum: IntArray, maximum: IntArray
) -> ReplicaLimits:
    """Return the limits with the replicas and limits that the rows of ``fleet.today`` state.

    ``minimum`` and ``maximum`` are the limits without these rows, and are changed. Rows of spot
    GPUs do not count if the fleet has none. Raise ScenarioError if a row has more replicas than
    fit.
    """
    models = [model.name for model in scenario.models]
    regions = [region.name for region in scenario.regions]
    has_spot = any(column.spot for column in fleet.columns)
    today, lent = np.zeros((2, *maximum.shape), np.int64)
    for row in scenario.fleet.today:
        if row.spot and not has_spot:
            continue
        m = models.index(row.model)
        pool = m, regions.index(row.region), column_of(row, m, fleet)
        lent[pool] = row.lent or 0
        running = row.replicas + int(lent[pool])
        if running > maximum[pool]:
            raise ScenarioError(
                f"fleet.today: {running} {'spot ' if row.spot else ''}replicas of {row.model} on "
                f"{row.gpu} in {row.region} are more than the {maximum[pool]} that fit. Raise the "
                "region's capacity."
            )
        today[pool] = row.replicas
        if row.maximum is not None:
            maximum[pool] = min(maximum[pool], row.maximum)
        lowest = minimum[pool] if row.minimum is None else row.minimum
        minimum[pool] = min(lowest, maximum[pool])
    return ReplicaLimits(minimum, maximum, today, lent if lent.any() else None)


def column_of(row: Replicas, m: int, fleet: Arrangements) -> int:
    """Return the GPU column of a row of ``fleet.today``, of the model with index ``m``.

    Raise ScenarioError if no profile matches the row, or more than one.
    """
    columns, speeds = fleet.columns, fleet.speeds
    candidates = {
        g: section
        for (model, g), section in fleet.sections.items()
        if (model, section.gpu, columns[g].spot) == (m, row.gpu, row.spot)
    }
    if not candidates:
        raise ScenarioError(
            f"fleet.today: {row.model} has no profile on {row.gpu}. Add one, or remove the row."
        )
    matching = {
        g: section
        for g, section in candidates.items()
        if _has_facts_of(row, columns[g], section) and row.tp in (None, speeds[m, g].tp)
    }
    # A row without a power cap fits if the profiles differ in nothing but that. Take the first.
    if row.power_cap is None:
        uncapped = [each.model_copy(update={"power_cap": None}) for each in matching.values()]
        if all(section == uncapped[0] for section in uncapped):
            matching = dict(islice(matching.items(), 1))
    if len(matching) == 1:
        (column,) = matching
        return column
    choices = "; ".join(
        f"tp {speeds[m, g].tp}, {section.precision}, {SHOWN[columns[g].role]}"
        for g, section in candidates.items()
    )
    fault = "more than one profile matches" if matching else "no profile matches"
    raise ScenarioError(
        f"fleet.today[{row.region}, {row.model}, {row.gpu}]: {fault}. Set tp, precision and role "
        f"to one of: {choices}."
    )


def _has_facts_of(row: Replicas, column: Column, section: Profile) -> bool:
    """Return whether a profile has the precision, power cap and role that a row states."""
    return (
        row.precision in (None, section.precision)
        and row.power_cap in (None, section.power_cap)
        and (row.role is None or ROLES[row.role] == column.role)
    )
