"""Read what an active plan asks for, and what the live sources of its scenario saw."""

from dataclasses import replace
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl

from planner.domain.retrospective.figures import HeldPool
from planner.inputs.live.replica_speed import ServedSpeed, served_speeds
from planner.inputs.scenario import document as text
from planner.models import ActivePlan, Run, Source, Trace
from planner.outputs.active_plan_metrics import replicas_at
from planner.outputs.stored_pools import pools_of
from planner.services.sources import current_trace, source_series

READ_EVERY = timedelta(minutes=1)  # interval at which replicas are read off a plan


def live_trace_name(name: str) -> str:
    """Return the name of the growing trace if ``name`` is a snapshot of it, else ``name``."""
    trace = Trace.objects.filter(name=name).first()
    if trace is None or not trace.sha256 or not trace.file_name.startswith("live source "):
        return name
    source = Source.objects.filter(name=trace.file_name.removeprefix("live source ")).first()
    return current_trace(source).name if source else name


def planned_pools(plan: ActivePlan, begins: datetime, ends: datetime) -> list[HeldPool]:
    """Return the replicas that ``plan`` requested from ``begins`` to ``ends``, by pool."""
    zone = ZoneInfo(plan.zone)
    moments = [begins + n * READ_EVERY for n in range(max(1, int((ends - begins) / READ_EVERY)))]
    local = [moment.astimezone(zone).replace(tzinfo=None) for moment in moments]
    times = np.array([moment.timestamp() for moment in moments])
    held = []
    for pool in pools_of(plan):
        replicas_at_time = replicas_at(plan, pool)
        replicas = np.array([replicas_at_time(moment) or 0 for moment in local], np.int64)
        changes = np.flatnonzero(np.diff(replicas, prepend=-1))
        held.append(
            HeldPool(
                pool.model,
                pool.region,
                pool.gpu,
                pool.gpus,
                pool.role,
                pool.market,
                pool.arrangement,
                times[changes],
                replicas[changes],
            )
        )
    return held


def observed_speeds(
    run: Run, begins: datetime, ends: datetime, only_source: Source | None = None
) -> list[ServedSpeed]:
    """Return the speed of replicas that live sources measured, under the scenario's names.

    ``only_source`` restricts this to one source; None: all sources.
    """
    by_source: dict[tuple[str, str, str], ServedSpeed] = {}
    for entry in text.outline(run.document)["traffic"]["sources"]:
        trace = Trace.objects.filter(name=live_trace_name(entry.get("trace") or "")).first()
        source = Source.objects.filter(trace=trace).first() if trace else None
        if source is None or only_source not in (None, source):
            continue
        bins = source_series(source).bins(ends.timestamp(), begins.timestamp())
        if entry.get("series"):
            bins = bins.filter(pl.col("model") == entry["series"])
        regions = list(entry.get("regions") or ())
        for served in served_speeds(bins, source.bin_s):
            region = served.region or (regions[0] if len(regions) == 1 else "")
            named = replace(served, model=entry.get("model") or served.model, region=region)
            by_source.setdefault((source.name, served.model, region), named)
    return list(by_source.values())
