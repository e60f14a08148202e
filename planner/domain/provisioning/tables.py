"""Build the tables of a provisioning run (docs/provisioning.md).

They list operators, devices (GPUs) and shards: the parts of operators on each device.
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import polars as pl

from planner.domain.provisioning import sources
from planner.domain.provisioning.unit import OPERATOR, Case
from simulation.provisioning.level import Level
from simulation.provisioning.levels import LEVELS

KEYS = ("model", "region", "gpu", "phase", "level", "weights")
Rows = Iterable[tuple[Any, ...]]


def tables_of(cases: list[Case]) -> dict[str, pl.DataFrame]:
    """Return the tables ``operators``, ``devices`` and ``shards`` of the cases, by name."""
    return {
        "operators": operators_table(cases),
        "devices": devices_table(cases),
        "shards": shards_table(cases),
    }


def _table(
    cases: list[Case], rows_of: Callable[[Case, Level], Rows], schema: dict[str, Any]
) -> pl.DataFrame:
    """Return a table with the rows that ``rows_of`` yields for each case and level.

    The columns ``KEYS`` name the case and the level. ``schema`` has the types of the others.
    """
    rows = [
        (case.model, case.region, case.gpu, case.phase, name, case.weights, *row)
        for case in cases
        for name in LEVELS
        if name in case.levels
        for row in rows_of(case, case.levels[name])
    ]
    return pl.DataFrame(rows, schema=dict.fromkeys(KEYS, pl.String) | schema, orient="row")


def operators_table(cases: list[Case]) -> pl.DataFrame:
    """Return one row per operator (module, whole model) of every case and level."""

    def rows(case: Case, level: Level) -> Rows:
        """Yield the row of the whole model, or a row for each operator of the plan."""
        replicas, plan, placement = level.replicas, level.plan, level.placement
        if replicas is not None:
            timing = sources.timing_word(sources.measured_shares(case.problem, level))
            # In the order of ``schema``; a whole model has no inputs and shares no device.
            yield (
                "whole model", "", replicas.replicas, replicas.batch, replicas.parallel,
                replicas.devices, level.latency_s * 1e3, replicas.busy, 1.0, True, timing, 1.0,
            )  # fmt: skip
        if plan is None or placement is None:
            return
        phase = level.as_planned(case.problem)
        problem = phase.problem
        # Index arrays of each operator's batch and parallelism.
        chosen = problem.indices_of(plan.batch, plan.parallel)
        batches_per_s = problem.rate / plan.batch  # of all replicas of each operator
        busy = batches_per_s * problem.latency_s[chosen] / plan.replicas
        slowest = int(plan.sojourn_s.argmax())
        sm_share = np.ones(len(problem.names))
        if phase.demand.compute_reserved:  # operators have shares of a GPU of their own
            sm_share = phase.demand.compute[chosen]
        measured = phase.measured[:, *chosen]  # [2, operator] measured and extrapolated share
        for v, name in enumerate(problem.names):
            inputs = [problem.names[u] for u, successor in problem.edges if successor == v]
            yield (
                name, " ".join(inputs) if level.level == OPERATOR else "",
                int(plan.replicas[v]), int(plan.batch[v]), int(plan.parallel[v]),
                int(plan.slots_of[v]), float(plan.sojourn_s[v] * 1e3), float(busy[v]),
                float(placement.slowdown[v]), v == slowest, sources.timing_word(measured[:, v]),
                float(sm_share[v]),
            )  # fmt: skip

    schema = {
        "operator": pl.String,
        "after": pl.String,
        "replicas": pl.Int64,
        "batch": pl.Int64,
        "parallel": pl.Int64,
        "slots": pl.Int64,
        "sojourn_ms": pl.Float64,
        "busy": pl.Float64,  # share of time that a replica works
        "slowdown": pl.Float64,  # from operators on the same devices
        "bottleneck": pl.Boolean,
        "timing": pl.String,  # source of its times, in a word
        "sm_share": pl.Float64,  # share of a GPU's multiprocessors that a replica may use
    }
    return _table(cases, rows, schema)


def devices_table(cases: list[Case]) -> pl.DataFrame:
    """Return one row per device: used GB, and used shares of memory, arithmetic and bandwidth."""

    def rows(case: Case, level: Level) -> Rows:
        """Yield a row for each device of a plan."""
        placed = level.placement
        if placed is None:
            return
        for d in range(placed.devices):
            used_bytes = float(placed.memory_bytes[d])
            yield (
                d,
                used_bytes / 1e9,
                used_bytes / case.device_bytes,
                float(placed.compute[d]),
                float(placed.bandwidth[d]),
            )

    shares = dict.fromkeys(("memory_gb", "memory", "compute", "bandwidth"), pl.Float64)
    return _table(cases, rows, {"device": pl.Int64, **shares})


def shards_table(cases: list[Case]) -> pl.DataFrame:
    """Return the number of shards of each operator on each device, and their memory."""

    def rows(case: Case, level: Level) -> Rows:
        """Yield a row for each operator on a device of a plan."""
        placed, plan = level.placement, level.plan
        if placed is None or plan is None:
            return
        as_planned = level.as_planned(case.problem)
        chosen = as_planned.problem.indices_of(plan.batch, plan.parallel)
        shard_gb = as_planned.demand.shard_bytes(*chosen, plan.replicas) / 1e9
        device_and_operator = np.stack([placed.device, placed.operator], axis=1)  # [shard, 2]
        pairs, shard_counts = np.unique(device_and_operator, axis=0, return_counts=True)
        for (d, v), shards in zip(pairs, shard_counts, strict=True):
            yield int(d), as_planned.problem.names[v], int(shards), float(shards * shard_gb[v])

    schema = {
        "device": pl.Int64,
        "operator": pl.String,
        "shards": pl.Int64,
        "memory_gb": pl.Float64,
    }
    return _table(cases, rows, schema)
