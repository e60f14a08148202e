"""List every parameter that a policy ran with, given or found, ready to copy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields

import numpy as np

from planner.domain.study import Setting
from planner.policies.base import Policy
from simulation.fleet import Fleet
from simulation.policy import ReportsParameters, ScalingPolicy
from simulation.results import PoolSeries


def settings_of(
    policy: Policy,
    rule: ScalingPolicy,
    fleet: Fleet,
    series: PoolSeries,
    labels: Sequence[str],
) -> tuple[Setting, ...]:
    """Return the settings of a policy.

    They include its parameters, the replicas of each pool and the routing of requests. Targets
    and P/D ratios are those at the end of the run. ``labels`` names the arrangement of
    each pool.
    """
    pools = [
        f"{pool.model} in {pool.region}, {label}"
        for pool, label in zip(fleet.pools, labels, strict=True)
    ]
    return (
        *_stated_settings(policy),
        *_active_settings(rule, pools),
        *_replicas(fleet, series, pools),
        *(
            Setting(f"routing.{field.name}", "", value)
            for field in fields(fleet.routing)
            if isinstance(value := getattr(fleet.routing, field.name), bool | int | float | str)
        ),
    )


def _stated_settings(policy: Policy) -> Iterator[Setting]:
    for name, value in policy.arguments.items():
        if isinstance(value, bool | int | float | str):
            yield Setting(name, "", value)
        elif isinstance(value, dict):
            yield from (Setting(f"{name}.{key}", "", part) for key, part in value.items())
        elif isinstance(value, list) and all("at" in row for row in value):  # a timetable
            for row in value:
                about = (row.get("model"), row.get("region"), row.get("gpu"))
                yield Setting(
                    f"replicas from {row['at']}", ", ".join(filter(None, about)), row["replicas"]
                )
        elif isinstance(value, list):
            for i, row in enumerate(value):
                for key, part in row.items():
                    text = " ".join(part) if isinstance(part, list) else part
                    yield Setting(f"{name}.{i}.{key}", "", text)


def _active_settings(rule: ScalingPolicy, pools: Sequence[str]) -> Iterator[Setting]:
    for row in rule.computed_parameters() if isinstance(rule, ReportsParameters) else ():
        for where, value in zip(pools, row.values, strict=True):
            if np.isfinite(value):
                yield Setting(row.what, where, float(value))


def _replicas(fleet: Fleet, series: PoolSeries, pools: Sequence[str]) -> Iterator[Setting]:
    up = series.ready + series.starting
    for p, (pool, where) in enumerate(zip(fleet.pools, pools, strict=True)):
        yield Setting("replicas at the start", where, pool.initial)
        yield Setting("most replicas at a time", where, round(float(up[p].max(initial=0.0)), 2))
        yield Setting("replicas at least", where, pool.minimum)
        yield Setting("replicas at most", where, pool.maximum)
