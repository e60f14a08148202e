"""Report plans that are made window by window: in figures, as a table and in sentences.

A level is the granularity of scaling: whole replicas, modules or operators. ``windows`` makes the
plans.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from planner.domain.progress import Progress
from planner.domain.provisioning.unit import MODEL, MODULE, OPERATOR, WORDS, Case, Sentences
from planner.domain.provisioning.windows import (
    ATTAINMENT,
    EVERY,
    TrackedCase,
    TrackedTraffic,
    track_cases,
)
from planner.domain.serialise import KEY, OPTIONAL, gpu_words
from simulation.provisioning.level import Savings, saved_shares
from simulation.provisioning.over_time import action_delay_s

NO_SAVING = 0.005  # smaller savings are written as 0%


@dataclass(frozen=True, slots=True)
class FixedPlan:
    """The plan for the busiest hour, kept for the whole time for comparison."""

    gpus: int
    gpu_hours: float
    attainment: float  # attainment of the replayed requests


@dataclass(frozen=True, slots=True)
class LevelFiguresOverTime:
    """The figures of plans at one level that are computed again every few windows."""

    every_s: float  # interval between plans
    acts_s: float  # delay from a plan until its replicas serve
    gpu_hours: float
    gpus_most: int
    kwh: float
    memory_gb: float  # mean
    attainment: float  # share of requests within the limit, in a replay if there is one
    by_means: float  # the same share by the mean latency of each window
    headroom: float  # extra load planned for, as a share of the known load
    refused: int  # windows without a feasible plan; the last plan stays active
    as_whole: float  # share of windows whose plan is that of whole replicas
    # The plan for the busiest hour; None: it was not replayed.
    fixed_plan: FixedPlan | None = field(metadata={KEY: "held", OPTIONAL: True})

    @property
    def meets_target(self) -> bool:
        """Return whether plans at this level meet the attainment target, with their headroom."""
        return self.attainment >= ATTAINMENT


@dataclass(frozen=True, slots=True)
class LevelTotal:
    """The figures of one level over the whole time, summed over all pools."""

    gpu_hours: float
    kwh: float
    memory_gb: float


@dataclass(frozen=True, slots=True)
class PoolOverTime:
    """One phase of one model in one region over the whole time, planned at every level."""

    model: str
    region: str
    gpu: str
    phase: str
    slo_ms: float
    replayed_windows: int  # 0: limits are checked by mean latencies
    levels: dict[str, LevelFiguresOverTime]
    savings: dict[str, Savings]


@dataclass(frozen=True, slots=True)
class OverTime:
    """All pools over the whole time, with totals and savings by level."""

    known: str  # the demand that plans are made from, in words
    window_s: float
    windows: int
    attainment: float
    replayed_windows: int  # of the pool with the fewest; 0: limits are checked by mean latencies
    levels: dict[str, LevelTotal]
    savings: dict[str, Savings]
    pools: tuple[PoolOverTime, ...]


def plan_windows(
    cases: list[Case], traffic: TrackedTraffic, progress: Progress
) -> tuple[OverTime, pl.DataFrame]:
    """Return (figures, table) of plans of ``cases`` at every level, made window by window.

    The table has one row per window, phase and level.
    """
    tracked_cases = track_cases(cases, traffic, progress)
    pools = tuple(_pool_figures(tracked, traffic.startup_s) for tracked in tracked_cases)
    totals = {}
    for name in tracked_cases[0].courses:
        levels = [pool.levels[name] for pool in pools]
        totals[name] = LevelTotal(
            sum(level.gpu_hours for level in levels),
            sum(level.kwh for level in levels),
            sum(level.memory_gb for level in levels),
        )
    load = tracked_cases[0].load  # all cases have the same windows
    figures = OverTime(
        known=load.known,
        window_s=load.windows.seconds,
        windows=int(load.windows.requests_s.size),
        attainment=ATTAINMENT,
        replayed_windows=min(pool.replayed_windows for pool in pools),
        levels=totals,
        savings=_savings(totals),
        pools=pools,
    )
    return figures, _table(tracked_cases, traffic.start_s)


def _pool_figures(tracked: TrackedCase, startup_s: float) -> PoolOverTime:
    """Return the figures of one phase (prefill or decode) over the whole time, by level.

    ``startup_s`` is the cold start of a replica.
    """
    case, windows = tracked.case, tracked.load.windows
    levels = {}
    for name, course in tracked.courses.items():
        plans = [level for level, _ in filter(None, course.plans)]
        plans_of_whole_replicas = sum(level.replicas is not None for level in plans)
        fixed_plan = None
        if name in tracked.fixed_attainment:
            gpus = case.levels[name].devices
            hours = windows.requests_s.size * windows.seconds / 3600
            fixed_plan = FixedPlan(gpus, gpus * hours, tracked.fixed_attainment[name])
        levels[name] = LevelFiguresOverTime(
            every_s=EVERY[course.level] * windows.seconds,
            acts_s=action_delay_s(course.level, startup_s),
            gpu_hours=course.gpu_hours(windows.seconds),
            gpus_most=int(course.devices.max()),
            kwh=course.kwh(windows.seconds),
            memory_gb=float(course.memory_bytes.mean() / 1e9),
            attainment=course.attainment,
            by_means=course.attainment_by_means,
            headroom=course.headroom,
            refused=course.refused,
            as_whole=plans_of_whole_replicas / max(len(plans), 1),
            fixed_plan=fixed_plan,
        )
    return PoolOverTime(
        model=case.model,
        region=case.region,
        gpu=case.gpu,
        phase=case.phase,
        slo_ms=case.service.slo_s * 1e3,
        replayed_windows=tracked.replayed,
        levels=levels,
        savings=_savings(levels),
    )


def _savings(levels: Mapping[str, LevelFiguresOverTime | LevelTotal]) -> dict[str, Savings]:
    """Return the shares of GPU-hours, energy and memory that levels below the replica save."""
    amounts = {
        name: (course.gpu_hours, course.kwh, course.memory_gb) for name, course in levels.items()
    }
    whole = amounts.pop(MODEL)
    return {name: saved_shares(whole, finer) for name, finer in amounts.items()}


def _table(tracked_cases: list[TrackedCase], start_s: float) -> pl.DataFrame:
    """Return one row per window, phase and level."""
    return pl.concat(
        pl.DataFrame(
            {
                "model": tracked.case.model,
                "region": tracked.case.region,
                "gpu": tracked.case.gpu,
                "phase": tracked.case.phase,
                "level": level,
                "time_s": start_s + tracked.load.windows.seconds * np.arange(course.devices.size),
                "requests_s": tracked.load.windows.requests_s,
                "gpus": course.devices,
                "power_w": course.power_w,
                "memory_gb": course.memory_bytes / 1e9,
                "met": course.met,
            }
        )
        for tracked in tracked_cases
        for level, course in tracked.courses.items()
    )


def sentences(over_time: OverTime | None) -> Sentences:
    """Return sentences on the levels without and with savings; none for None (not computed).

    A level that saves GPU-hours has no sentence if it or whole replicas miss the target.
    """
    if over_time is None:
        return Sentences()
    without_savings = list(_missed_targets(over_time))
    with_savings: list[str] = []
    checked_words = (
        f"in a replay of {over_time.replayed_windows} windows"
        if over_time.replayed_windows
        else "by the mean latency of each window; requests are not replayed"
    )
    for level, label in ((OPERATOR, "operators"), (MODULE, "modules")):
        saved_share = over_time.savings[level].gpus if level in over_time.savings else None
        if saved_share is None:
            continue
        finer_hours = over_time.levels[level].gpu_hours
        whole_replica_hours = over_time.levels[MODEL].gpu_hours
        if saved_share <= NO_SAVING:
            without_savings.append(
                f"Window by window, planning by {label} saves no GPU-hours here: "
                f"{finer_hours:,.1f} against {whole_replica_hours:,.1f} by whole replicas."
            )
        elif all(
            pool.levels[name].meets_target for pool in over_time.pools for name in (level, MODEL)
        ):
            with_savings.append(
                f"Window by window, planning by {label} takes {finer_hours:,.1f} GPU-hours where "
                f"whole replicas take {whole_replica_hours:,.1f}: {saved_share:.0%} fewer at "
                f"{ATTAINMENT:.0%} of the requests within the limit, {checked_words}."
                + _faster_scaling_words(over_time, level)
            )
    return Sentences((*without_savings, *_fixed_plan_savings(over_time)), tuple(with_savings))


def _faster_scaling_words(over_time: OverTime, level: str) -> str:
    """Return a sentence if a level saves because it scales faster, and not by finer plans; else "".

    That is so if its plans are mostly those of whole replicas.
    """
    share = min(pool.levels[level].as_whole for pool in over_time.pools)
    if share < 0.5:  # in some pool, most plans are finer than whole replicas
        return ""
    levels = over_time.pools[0].levels
    return (
        f" In {share:.0%} of the windows or more its plan equals that of whole replicas. Its gain "
        f"is acting within {levels[level].acts_s:.1f} s, on GPUs where the engine already runs, "
        f"instead of {levels[MODEL].acts_s:,.0f} s."
    )


def _missed_targets(over_time: OverTime) -> Iterator[str]:
    """Yield a sentence for each level that misses its target at every headroom tried."""
    for pool in over_time.pools:
        for level, course in pool.levels.items():
            if not course.meets_target:
                yield (
                    f"Window by window, {pool.phase} of {pool.model} in {pool.region} "
                    f"{WORDS[level]} misses its target: {course.attainment:.1%} of requests are "
                    f"within {pool.slo_ms:,.0f} ms (target {ATTAINMENT:.0%}), even planned for "
                    f"{1 + course.headroom:.0f} times the load. Do not compare its GPU-hours."
                )


def _fixed_plan_savings(over_time: OverTime) -> Iterator[str]:
    """Yield a sentence for each level that costs more than a fixed plan for the busiest hour."""
    for pool in over_time.pools:
        for level, course in pool.levels.items():
            fixed = course.fixed_plan
            if fixed is None or fixed.attainment < ATTAINMENT:
                continue
            if fixed.gpu_hours < course.gpu_hours - 0.05:  # less, even as both are rounded to 0.1
                yield (
                    f"{pool.phase.capitalize()} of {pool.model} in {pool.region} {WORDS[level]}: "
                    f"the {gpu_words(fixed.gpus)} of the busiest hour, fixed for the window, take "
                    f"{fixed.gpu_hours:,.1f} GPU-hours and keep {fixed.attainment:.1%} of the "
                    f"requests within the limit. Replanned every {course.every_s:.0f} s, it "
                    f"takes {course.gpu_hours:,.1f}."
                )
