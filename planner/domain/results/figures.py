"""Define the figures of a policy and of its tiers, and where they are shown.

A figure that a simulation has to count is a field of ``Summary``. All others are computed
here.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import polars as pl

from planner.domain.columns import (
    COUNT,
    FLAG,
    HOURS,
    KG,
    KWH,
    LESS,
    MORE,
    MS,
    NUMBER,
    REASONS,
    SECONDS,
    SHARE,
    TEXT,
    USD,
    Column,
    Columns,
)
from planner.domain.replay.detail import OUTCOMES, PERCENTILES
from planner.domain.results.notes import note_of
from planner.domain.study import PolicyRun
from simulation.metrics import GroupSummary

TAIL = ("p95",)
POLICY_TABLE, HOUR_TABLE, START_TABLE = "policies", "hours", "starts"  # of pages
REQUEST_TABLE, GROUP_TABLE = "requests", "groups"


@dataclass(frozen=True, slots=True)
class TierFigures:
    """Figures of one tier under one policy."""

    policy: str
    tier: str
    group: GroupSummary
    worst_hour: float | None
    target: float
    slo_met: bool


def tiers_of(run: PolicyRun) -> Iterator[TierFigures]:
    targets = {tier.name: tier.attainment for tier in run.fleet.tiers}
    summary = run.summary
    for name, group in summary.tiers.items():
        yield TierFigures(
            run.name, name, group, summary.worst_hour[name], targets[name], summary.slo_met[name]
        )


def _grouped(name: str, unit: str, help: str, **more: Any) -> Column:
    return Column(name, unit, help, attrgetter(f"group.{name}"), **more)


def _counted(name: str, unit: str, help: str, on: str = "", head: str = "", **more: Any) -> Column:
    heads = {on: head} if on else {}
    return Column(name, unit, help, attrgetter(f"summary.{name}"), **({"heads": heads} | more))


def _by_tier(name: str, help: str, head: str, **more: Any) -> Column:
    """Return a column of the 95th percentile of each tier.

    A percentile over tiers that wait hours and tiers that wait milliseconds would mean nothing.
    """
    latency = name.replace("_p95", "")

    def of(run: PolicyRun) -> dict[str, float | None]:
        return {tier: getattr(group, latency).p95 for tier, group in run.summary.tiers.items()}

    return Column(
        name, MS, f"{help}, p95 by tier", of, flat=False, heads={POLICY_TABLE: head}, **more
    )


TIERS = Columns(
    (
        Column("policy", TEXT, "as the comparison names it"),
        Column("tier", TEXT, "its name"),
        _grouped("arrived", COUNT, "requests"),
        _grouped("completed", COUNT, "of them", flat=False),
        _grouped("rejected", COUNT, "of them", flat=False),
        _grouped("unfinished", COUNT, "of them", flat=False),
        _grouped("not_due", COUNT, "of them: neither done nor late when the replay ended",
                 flat=False),
        _grouped("attainment", SHARE,
                 "of arrived requests that are due, those within every limit"),
        Column(
            "worst_hour", SHARE, "attainment in the worst hour of at least 100 requests",
            once="worst_hour_attainment",
        ),
        Column("target", SHARE, "of attainment"),
        Column("slo_met", FLAG, "whether attainment reaches its target", once="met"),
        _grouped("input_tokens", COUNT, "of completed requests", flat=False),
        _grouped("output_tokens", COUNT, "of completed requests", flat=False),
        _grouped("ttft_ms", MS, "time to first token: mean, p50, p95, p99", parts=TAIL),
        _grouped("tbt_ms", MS, "mean time between tokens of a request", parts=TAIL),
        _grouped("e2e_ms", MS, "end to end", parts=TAIL),
    )
)  # fmt: skip
POLICIES = Columns(
    (
        Column("policy", TEXT, "as the comparison names it", attrgetter("name")),
        Column("label", TEXT, "as people call it"),
        _counted("seed", NUMBER, "of the replay", flat=False),
        _counted("duration_s", SECONDS, "of the window", flat=False),
        _counted("cost_usd", USD,
                 "of every instance that is starting, ready or draining, or works after the window",
                 POLICY_TABLE, "Cost", better=LESS),
        _counted("after_cost_usd", USD, "of it, instances that still worked after the window"),
        _counted("before_cost_usd", USD, "of it, starts before the window"),
        _counted("busy_gpu_hours", HOURS, "an iteration runs", HOUR_TABLE, "Busy"),
        _counted("idle_gpu_hours", HOURS, "up, and nothing to do", HOUR_TABLE, "Idle"),
        _counted("gpu_hours", HOURS, "busy + idle + wasted", POLICY_TABLE, "GPU-hours",
                 better=LESS),
        _counted("wasted_gpu_hours", HOURS, "starting",
                 heads={POLICY_TABLE: "of it wasted", HOUR_TABLE: "Starting"}, below=True,
                 better=LESS),
        _counted("before_gpu_hours", HOURS,
                 "of wasted_gpu_hours, starts before the window of what is up as it begins",
                 HOUR_TABLE, "of starting, before the window"),
        _counted("after_gpu_hours", HOURS,
                 "of gpu_hours, after the window, each instance to its last work",
                 HOUR_TABLE, "of all, after the window"),
        _counted("instance_hours", HOURS, "of whole instances"),
        _counted("donated_gpu_hours", HOURS, "lent as spot, beside gpu_hours",
                 HOUR_TABLE, "Lent as spot"),
        _counted("lent_usd", USD,
                 "earned by these hours, off cost_usd, which has them at their price; 0 where "
                 "`objective.lend_share` is left out: then they cost nothing either"),
        _counted("energy_kwh", KWH, "gpu_energy_kwh + host_energy_kwh, with PUE",
                 POLICY_TABLE, "Energy", better=LESS),
        _counted("host_energy_kwh", KWH, "of the servers around the GPUs, with PUE",
                 POLICY_TABLE, "of it hosts", below=True),
        Column("gpu_energy_kwh", KWH, "of the GPUs, with PUE",
               lambda run: run.summary.energy_kwh - run.summary.host_energy_kwh),
        _counted("after_energy_kwh", KWH, "of energy_kwh, after the window"),
        _counted("carbon_kg", KG, "of that energy", POLICY_TABLE, "Carbon", better=LESS),
        _counted("arrived", COUNT, "requests: completed + rejected + unfinished + not_due",
                 REQUEST_TABLE, "Arrived"),
        _counted("completed", COUNT, "requests", REQUEST_TABLE, "Completed", better=MORE),
        _counted("rejected", COUNT, "requests", REQUEST_TABLE, "Rejected", better=LESS),
        _counted("unfinished", COUNT, "requests", REQUEST_TABLE, "Unfinished", better=LESS),
        _counted("not_due", COUNT, "requests neither done nor late when the replay ended",
                 REQUEST_TABLE, "Not yet due"),
        _counted("reject_reasons", REASONS, "of requests", REQUEST_TABLE, "Why rejected",
                 flat=False),
        _counted("input_tokens", COUNT, "of completed requests", flat=False),
        _counted("output_tokens", COUNT, "of completed requests", flat=False),
        _counted("tokens_in_time", COUNT, "prompts and answers of requests within every limit",
                 REQUEST_TABLE, "Tokens in time", better=MORE),
        _counted("slo_attainment", SHARE, "by tier, of the requests that arrived and are due",
                 POLICY_TABLE, "{}", flat=False, sign="slo_met", better=MORE),
        _counted("worst_hour", SHARE, "by tier, in its worst hour of at least 100 requests",
                 POLICY_TABLE, "worst hour", flat=False, below=True, better=MORE),
        _by_tier("ttft_p95_ms", "time to first token", "{} TTFT p95", better=LESS),
        _by_tier("tbt_p95_ms", "mean time between tokens of a request", "TBT p95", below=True,
                 better=LESS),
        _by_tier("e2e_p95_ms", "end to end", "E2E p95", below=True, better=LESS),
        _counted("ttft_ms", MS, "time to first token of all tiers together, however long they may "
                 "wait: mean, p50, p95, p99", parts=TAIL),
        _counted("tbt_ms", MS, "mean time between tokens of a request, of all tiers together",
                 parts=TAIL),
        _counted("e2e_ms", MS, "end to end, of all tiers together", parts=TAIL),
        _counted("slo_met", FLAG, "by tier, whether attainment reaches its target", flat=False),
        Column("meets_slo", FLAG, "whether every tier is met"),
        _counted("starts", COUNT, "by where the instance came from", START_TABLE, "From {}",
                 flat=False),
        Column("starts_total", COUNT, "of all of these",
               lambda run: sum(run.summary.starts.values()), once="starts"),
        _counted("failed_starts", COUNT, "of instances", START_TABLE, "Failed starts", better=LESS),
        Column("refused_starts", COUNT, "instances asked for that no GPU was left for, each once "
               "until it starts or is no longer asked for", heads={START_TABLE: "Refused, no GPU"},
               better=LESS),
        _counted("reinstated", COUNT, "instances taken out, and back before they were gone",
                 START_TABLE, "Reinstated"),
        _counted("failures", COUNT, "instances lost to faults", START_TABLE, "Replicas lost"),
        _counted("retried", COUNT, "requests that began again as an instance was lost",
                 START_TABLE, "Requests begun again"),
        _counted("iterations", COUNT, "of all instances", flat=False),
        _counted("preemptions", COUNT, "of sequences, for want of KV memory", flat=False),
        _counted("outside_iterations", COUNT, "outside the rows the profiles were measured on",
                 flat=False),
        _counted("wall_seconds", SECONDS, "that the replay took", flat=False),
        Column("peak_rss_mb", NUMBER, "largest memory of the process so far, MB",
               lambda run: peak_rss_mb(), flat=False),
        Column("tiers", TEXT, "by tier: the columns of `tiers`",
               lambda run: {tier.tier: TIERS.row(tier) for tier in tiers_of(run)}, flat=False),
        _counted("models", TEXT, "by model and home region: counts, attainment and latencies",
                 flat=False),
        _counted("pools", TEXT, "a row per pool: hours, energy, cost, starts", flat=False),
        Column("asked", FLAG, "whether the list names it; the others are baselines, which stand in "
               "every comparison"),
        Column("hindsight", FLAG, "sized or planned knowing what came: a yardstick that nobody can "
               "run", lambda run: run.traits.uses_future_data),
        Column("flat_usd", USD, "cost of the smallest flat fleet found that serves every tier as "
               "well (to 0.2 points); null where all policies serve equally well, or this one far "
               "too badly"),
        Column("note", TEXT, "what its figures do not say by themselves, as a signal that never "
               "moved; empty where there is nothing", note_of),
        Column("signal", TEXT, "the one it goes by: words, least and most over the run, where it "
               "asks for more and for fewer, and whether it did", attrgetter("swing"), flat=False),
        Column("settings", TEXT, "what to copy: parameters, targets and ratios in force, replicas, "
               "routing; of a pool (`where`) or of all", flat=False),
    )
)  # fmt: skip

GROUPS = Columns(
    (
        Column("policy", TEXT, "as the comparison names it"),
        Column("tier", TEXT, "its name, or all together"),
        Column("model", TEXT, "its name, or all together", heads={GROUP_TABLE: "Model"}),
        Column("region", TEXT, "home, or all together", heads={GROUP_TABLE: "Region"}),
        Column("arrived", COUNT, "requests", heads={GROUP_TABLE: "Arrived"}),
        Column("lost", COUNT, "of them, not served; on the page alone", flat=False,
               heads={GROUP_TABLE: "not served"}, below=True),
        *(Column(name, COUNT, "of them") for name in OUTCOMES.values()),
        Column("attainment", SHARE, "of arrived requests, those within every limit",
               heads={GROUP_TABLE: "In time"}),
        *(Column(name, NUMBER, "tokens") for name in ("mean_isl", "mean_osl")),
        *(Column(f"{name}_ms_p{share}", MS, "exact, over requests that have a value",
                 heads={GROUP_TABLE: f"p{share}" if share != 50 else f"{name.upper()} p50"},
                 below=share != 50)
          for name in ("ttft", "tbt", "e2e") for share in PERCENTILES),
    )
)  # fmt: skip
BY_NAME = replace(POLICIES, key="name")


def peak_rss_mb() -> float:
    """Return the largest resident memory of this process so far, in MB of 10^6 bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def policies_table(runs: Sequence[PolicyRun]) -> pl.DataFrame:
    return POLICIES.table(runs)


def tiers_table(runs: Sequence[PolicyRun]) -> pl.DataFrame:
    return TIERS.table(tier for run in runs for tier in tiers_of(run))
