"""Replay the active and the proposed plan on the traffic of the proposed run.

The policy ``periodic`` has their replicas by time of day or week, and their guard. The simulation
uses the scenario of the proposed run.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from zoneinfo import ZoneInfo

import numpy as np

from planner.errors import EXPECTED
from planner.inputs.scenario import document as text
from planner.models import ActivePlan, Run, User
from planner.outputs.plan_guard import guards_of
from planner.outputs.proposal_changes import REPLAYED
from planner.outputs.stored_pools import StoredPool, pools_of
from planner.outputs.weekly_pattern import (
    MINUTES_PER_DAY,
    MINUTES_PER_WEEK,
    UNKNOWN,
    Repeat,
    minute_of,
    replicas_without_gaps,
)
from planner.policies.builtin.periodic import MOST_STEPS, WEEKDAYS
from planner.schema_types import ROLES
from planner.selectors.run_comparison import compare_runs, windows
from planner.selectors.runs import stored_result
from planner.services.runs import run_create
from simulation.arrays import IntArray

# Settings (first words of their keys) that change how a plan is found, but not how it is simulated.
IGNORED_SETTINGS = (
    "name",
    "description",
    "objective.",
    "forecast.",
    "policies",
    "horizon.",
    "option ",
)
SCENARIO_ROLES = {role: scenario_role for scenario_role, role in ROLES.items()}


def active_replay_start(
    plan: ActivePlan, run: Run, base: Run | None, by: User | None
) -> Run | None:
    """Start and return a run that replays the active ``plan`` on the requests of ``run``.

    ``base`` is the run that made the plan, if it still exists. Returns None if ``base`` and ``run``
    simulated the same requests, so that no replay is needed. Also returns None if no exact replay
    is possible.
    """
    if base is not None and _have_same_inputs(base, run, plan.policy):
        return None
    return _replay(plan, run, f"Active plan (run {plan.number}) on run {run.pk}", by)


def proposed_replay_start(plan: ActivePlan, run: Run, by: User | None) -> Run | None:
    """Start and return a run that replays ``plan``, the plan of ``run`` as activation stores it.

    Returns None if ``run`` itself simulated it, or if no exact replay is possible.
    """
    if plan.policy in stored_result(run).policies:
        return None
    return _replay(plan, run, f"Proposed by run {run.pk}", by)


def _replay(plan: ActivePlan, run: Run, name: str, by: User | None) -> Run | None:
    """Start and return a run called ``name`` that replays a plan in the scenario of ``run``.

    None if no exact replay is possible: the window is over a week, the plan has too many steps, or
    a pool cannot be told by its model, region, GPU type and role.
    """
    try:
        scenario = text.parse(run.document, run.name)
        window = stored_result(run).window
        assert window is not None  # runs with a plan have one
        schedule = list(periodic_rows(plan, window.start, window.end))
        # A spot pool has the same model, region, GPU type and role as one on demand.
        pools = [(pool.model, pool.region, pool.gpu, pool.role) for pool in pools_of(plan)]
        profiles = [(profile.model, profile.gpu, profile.role) for profile in scenario.profiles]
        has_spot = any(region.spot for region in scenario.regions)
        has_duplicates = len(set(pools)) < len(pools) or len(set(profiles)) < len(profiles)
        has_unique_pools = bool(pools or profiles) and not has_spot and not has_duplicates
        if not has_unique_pools or not 0 < len(schedule) <= MOST_STEPS:
            return None
        policies = stored_result(plan.run).policies if plan.run else {}
        # The replay has a reactive guard if the plan's policy has one.
        has_guard = plan.policy in policies and bool(guards_of(policies[plan.policy].settings))
        policy = {"name": REPLAYED, "timetable": schedule, "guard": has_guard}
        document = text.edit(run.document, {"policies": [policy]}, run.name)
        text.parse(document, run.name)
    except EXPECTED:
        return None
    return run_create(
        owner=by,
        kind=Run.Kind.SIMULATE,
        name=name[:120],
        document=document,
        options={"policy": REPLAYED, "seed": run.seed},
        seed=run.seed,
    )


def _have_same_inputs(base: Run, run: Run, policy: str) -> bool:
    """Return whether both runs simulated the same requests, limits, prices and speeds.

    ``policy`` is that of ``base``.
    """
    base_result, result = stored_result(base), stored_result(run)
    if policy not in base_result.policies or len(windows([base_result, result])) > 1:
        return False
    comparison = compare_runs([base, run], policy_per_run=[policy, ""])
    return all(row.key.startswith(IGNORED_SETTINGS) for row in comparison.differences)


def periodic_rows(plan: ActivePlan, begins: datetime, ends: datetime) -> Iterator[dict[str, Any]]:
    """Yield the rows of the policy ``periodic`` with a plan's replicas from ``begins`` to ``ends``.

    A row sets the replicas of a pool from a time of the day or week on. After its dates a plan
    repeats its day, or its week. A window of over a week yields no rows.
    """
    minutes = int((ends - begins) / timedelta(minutes=1))
    if minutes > MINUTES_PER_WEEK:
        return
    # None first: a row of 0 replicas, the default of pools that the plan does not have.
    for pool in (None, *pools_of(plan)):
        counts = np.zeros(1, np.int64)
        names: dict[str, str] = {}
        if pool is not None:
            counts = _replicas_by_minute(plan, pool, begins, minutes)
            role = SCENARIO_ROLES.get(pool.role, pool.role)
            names = {"model": pool.model, "region": pool.region, "gpu": pool.gpu, "role": role}
        # The minutes in which the count changes. The first one counts as a change.
        for minute in np.flatnonzero(np.diff(counts, prepend=UNKNOWN)):
            moment = (begins + timedelta(minutes=int(minute))).astimezone(UTC)
            row: dict[str, Any] = {"at": f"{moment:%H:%M}"}
            if minutes > MINUTES_PER_DAY:
                row["day"] = WEEKDAYS[moment.weekday()]
            yield row | {"replicas": int(counts[minute]), **names}


def _replicas_by_minute(
    plan: ActivePlan, pool: StoredPool, begins: datetime, minutes: int
) -> IntArray:
    """Return the replicas of a pool by minute from ``begins`` on, ``[minutes]``.

    After its dates a dated plan repeats its day, or its week.
    """
    repeat = plan.repeat
    if repeat == "once":  # by the length of its dates
        repeat = (
            "daily" if plan.ends - plan.begins <= timedelta(minutes=MINUTES_PER_DAY) else "weekly"
        )
    counts = replicas_without_gaps(pool.steps, cast(Repeat, repeat))
    local_begin = begins.astimezone(ZoneInfo(plan.zone)).replace(tzinfo=None)
    # ``counts`` has the minutes of a day or week, which repeat.
    return counts[(minute_of(local_begin) + np.arange(minutes)) % len(counts)]
