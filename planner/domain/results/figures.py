"""Declare the figures of a policy and of its tiers, with the tables that show them.

A figure that a simulation has to count is a field of ``Summary``. All others are computed here.
"""

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
from planner.domain.study import PolicyRun
from planner.domain.traffic.window import DAY_S
from simulation.metrics import GroupSummary
from simulation.policies.wrappers.signal_range import SignalRange


def note_of(run: PolicyRun) -> str:
    """Return a sentence if the policy's signal never triggered a scale-out, or always did.

    Otherwise, and without a signal, return "". ``signal.asked_more`` and ``asked_fewer`` tell
    whether it ever triggered a scale-out and a scale-in.
    """
    signal = run.signal_range
    if signal is None:
        return ""
    always_above = signal.low > signal.out_above and not signal.asked_fewer
    if signal.asked_more and not always_above:
        return ""
    low, high = _signal_text(signal, signal.low), _signal_text(signal, signal.high)
    span = f"at {low}" if low == high else f"between {low} and {high}"
    stayed = f"Its signal, {signal.words}, stayed {span}"
    above, below = _signal_text(signal, signal.out_above), _signal_text(signal, signal.in_below)
    if signal.asked_more:
        return f"{stayed}, above {above} all the time: it always scaled out."
    if signal.asked_fewer:
        return f"{stayed} and never passed {above}: it never scaled out."
    if signal.share and signal.out_above >= 1:
        return (
            f"{stayed}, and no share passes {above}, where it would ask for more: it did not scale."
        )
    return f"{stayed}, never above {above} nor below {below}: it did not scale."


def _signal_text(signal: SignalRange, value: float) -> str:
    """Return a value of a signal as text, as a percentage if the signal is a share."""
    if signal.share:
        return f"{value:.1%}" if value < 0.1 else f"{value:.0%}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


TAIL = ("p95",)  # the percentile that flat tables have of a latency
POLICY_TABLE, HOUR_TABLE, START_TABLE = "policies", "hours", "starts"  # of pages
REQUEST_TABLE, GROUP_TABLE = "requests", "groups"
ENERGY_TABLE, LATENCY_TABLE = "energy", "latency"
DETAIL_TABLES = {  # with their titles, in the order of pages
    LATENCY_TABLE: "Latency and worst hours", REQUEST_TABLE: "Requests", HOUR_TABLE: "GPU-hours",
    ENERGY_TABLE: "Energy and power", START_TABLE: "Starts",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TierFigures:
    """The figures of one tier under one policy; ``worst_hour`` and ``target`` are attainments."""

    policy: str
    tier: str
    group: GroupSummary
    worst_hour: float | None
    target: float
    slo_met: bool


def tiers_of(run: PolicyRun) -> Iterator[TierFigures]:
    """Yield the figures of each tier of a policy's replay."""
    targets = {tier.name: tier.attainment for tier in run.fleet.tiers}
    summary = run.summary
    for name, group in summary.tiers.items():
        yield TierFigures(
            run.name, name, group, summary.worst_hour[name], targets[name], summary.slo_met[name]
        )


def utility_of(run: PolicyRun) -> float | None:
    """Return the summed utility of requests within every limit; None if no tier states one."""
    if not any(tier.utility for tier in run.fleet.tiers):
        return None
    total = 0.0
    for tier in run.fleet.tiers:
        requests = run.summary.tiers.get(tier.name)
        if requests is not None:
            due = requests.arrived - requests.not_due
            total += tier.utility * (requests.attainment or 0.0) * due
    return total


def _group_column(name: str, unit: str, help: str, **more: Any) -> Column:
    """Declare a column with the field ``name`` of ``GroupSummary``."""
    return Column(name, unit, help, attrgetter(f"group.{name}"), **more)


def _summary(name: str, unit: str, help: str, on: str = "", head: str = "", **more: Any) -> Column:
    """Declare a column with the field ``name`` of ``Summary``.

    The page's table ``on`` shows it under the heading ``head``; "": no table.
    """
    heads = {on: head} if on else {}
    return Column(name, unit, help, attrgetter(f"summary.{name}"), **({"heads": heads} | more))


def _p95_by_tier(name: str, help: str, head: str, **more: Any) -> Column:
    """Declare a column with the 95th percentile of a latency in each tier, such as "ttft_p95_ms".

    A percentile over deferrable and interactive tiers together would mean nothing.
    """
    latency = name.replace("_p95", "")
    return Column(
        name, MS, f"{help}, p95 by tier",
        lambda run: {tier: getattr(row, latency).p95 for tier, row in run.summary.tiers.items()},
        flat=False, heads={LATENCY_TABLE: head}, **more,
    )  # fmt: skip


TIERS = Columns(
    (
        Column("policy", TEXT, "key of the policy"),
        Column("tier", TEXT, "name of the tier"),
        _group_column("arrived", COUNT, "requests that arrived"),
        _group_column("completed", COUNT, "completed requests", flat=False),
        _group_column("rejected", COUNT, "rejected requests", flat=False),
        _group_column("unfinished", COUNT, "unfinished requests", flat=False),
        _group_column("not_due", COUNT, "requests that were neither done nor late at the end",
                 flat=False),
        _group_column("attainment", SHARE, "share of due requests within every limit"),
        Column(
            "worst_hour", SHARE, "attainment in the worst hour with 100 requests or more",
            older_name="worst_hour_attainment",
        ),
        Column("target", SHARE, "target of attainment"),
        Column("slo_met", FLAG, "whether the target is met", older_name="met"),
        _group_column("input_tokens", COUNT, "input tokens of completed requests", flat=False),
        _group_column("output_tokens", COUNT, "output tokens of completed requests", flat=False),
        _group_column("ttft_ms", MS, "TTFT: mean, p50, p95, p99", parts=TAIL),
        _group_column("tbt_ms", MS, "mean gap between output tokens", parts=TAIL),
        _group_column("e2e_ms", MS, "E2E latency", parts=TAIL),
    )
)  # fmt: skip
POLICIES = Columns(
    (
        Column("policy", TEXT, "key of the policy", attrgetter("name")),
        Column("label", TEXT, "label of the policy"),
        _summary("seed", NUMBER, "seed of the simulation", flat=False),
        _summary("duration_s", SECONDS, "length of the window", flat=False),
        _summary("cost_usd", USD,
                 "cost of starting, ready and draining replicas, and of work after the window",
                 POLICY_TABLE, "Cost", better=LESS),
        _summary("after_cost_usd", USD, "part of the cost: work after the window"),
        _summary("before_cost_usd", USD, "part of the cost: starts before the window"),
        _summary("busy_gpu_hours", HOURS, "hours with a running iteration", HOUR_TABLE, "Busy"),
        _summary("idle_gpu_hours", HOURS, "hours without work", HOUR_TABLE, "Idle"),
        _summary("gpu_hours", HOURS, "busy + idle + wasted", POLICY_TABLE, "GPU-hours",
                 better=LESS),
        _summary("wasted_gpu_hours", HOURS, "hours of starting replicas",
                 HOUR_TABLE, "Starting", better=LESS),
        _summary("before_gpu_hours", HOURS,
                 "part of wasted_gpu_hours: starts before the window",
                 HOUR_TABLE, "Starting before the window"),
        _summary("after_gpu_hours", HOURS,
                 "part of gpu_hours: work after the window",
                 HOUR_TABLE, "After the window"),
        _summary("instance_hours", HOURS, "hours of whole replicas"),
        _summary("donated_gpu_hours", HOURS, "hours lent as spot, not in gpu_hours",
                 HOUR_TABLE, "Lent as spot"),
        _summary("lent_usd", USD,
                 "income of these hours, already subtracted from cost_usd; 0 without "
                 "`objective.lend_share`"),
        _summary("energy_kwh", KWH, "gpu_energy_kwh + host_energy_kwh, with PUE",
                 POLICY_TABLE, "Energy", better=LESS),
        _summary("host_energy_kwh", KWH, "energy of servers without their GPUs, with PUE",
                 ENERGY_TABLE, "Host energy"),
        Column("gpu_energy_kwh", KWH, "energy of the GPUs, with PUE",
               lambda run: run.summary.energy_kwh - run.summary.host_energy_kwh),
        _summary("after_energy_kwh", KWH, "part of energy_kwh: work after the window"),
        _summary("carbon_kg", KG, "carbon from energy_kwh", POLICY_TABLE, "Carbon", better=LESS),
        _summary("reserved_usd", USD, "part of the cost: reserved GPUs, used or not"),
        _summary("electricity_usd", USD, "part of the cost: electricity, if its price is stated"),
        _summary("embodied_kg", KG, "carbon of making the hardware, by GPU-hour; not in carbon_kg",
                 ENERGY_TABLE, "Embodied carbon", better=LESS),
        _summary("peak_kw", NUMBER, "by region: highest mean power of an interval, kW",
                 ENERGY_TABLE, "Peak kW: {}", flat=False, better=LESS),
        _summary("arrived", COUNT, "requests: completed + rejected + unfinished + not_due",
                 REQUEST_TABLE, "Arrived"),
        _summary("completed", COUNT, "completed requests", REQUEST_TABLE, "Completed", better=MORE),
        _summary("rejected", COUNT, "rejected requests", REQUEST_TABLE, "Rejected", better=LESS),
        _summary("unfinished", COUNT, "unfinished requests", REQUEST_TABLE, "Unfinished",
                 better=LESS),
        _summary("not_due", COUNT, "requests that were neither done nor late at the end",
                 REQUEST_TABLE, "Not yet due"),
        _summary("reject_reasons", REASONS, "rejected requests by reason", REQUEST_TABLE,
                 "Why rejected", flat=False),
        _summary("input_tokens", COUNT, "input tokens of completed requests", flat=False),
        _summary("output_tokens", COUNT, "output tokens of completed requests", flat=False),
        _summary("tokens_in_time", COUNT, "tokens of requests within every limit",
                 REQUEST_TABLE, "Tokens within SLO", better=MORE),
        Column("utility", NUMBER, "sum of `tiers.utility` over the requests within every limit; "
               "null if no tier has one", utility_of, heads={REQUEST_TABLE: "Value within SLO"},
               better=MORE),
        _summary("slo_attainment", SHARE, "by tier: share of due requests within every limit",
                 POLICY_TABLE, "SLO attainment: {}", flat=False, better=MORE),
        _summary("worst_hour", SHARE,
                 "by tier: attainment in the worst hour with 100 requests or more", LATENCY_TABLE,
                 "Worst hour: {}", flat=False, better=MORE),
        _summary("missed_hours", COUNT, "by tier: hours with 100 requests or more below the target",
                 LATENCY_TABLE, "Hours below target: {}", flat=False, better=LESS),
        _p95_by_tier("ttft_p95_ms", "TTFT", "TTFT p95: {}", better=LESS),
        _p95_by_tier("tbt_p95_ms", "mean gap between output tokens", "TPOT p95: {}",
                 better=LESS),
        _p95_by_tier("e2e_p95_ms", "E2E latency", "E2E p95: {}", better=LESS),
        _summary("ttft_ms", MS, "TTFT: mean, p50, p95, p99", parts=TAIL),
        _summary("tbt_ms", MS, "mean gap between output tokens", parts=TAIL),
        _summary("e2e_ms", MS, "E2E latency", parts=TAIL),
        _summary("slo_met", FLAG, "by tier: whether the target is met", flat=False),
        Column("meets_slo", FLAG, "whether every tier meets its target",
               heads={POLICY_TABLE: "Meets SLO"}),
        _summary("starts", COUNT, "starts by source", START_TABLE, "From {}",
                 flat=False),
        Column("starts_total", COUNT, "sum of starts",
               lambda run: sum(run.summary.starts.values()), older_name="starts"),
        _summary("failed_starts", COUNT, "failed starts", START_TABLE, "Failed starts",
                 better=LESS),
        Column("refused_starts", COUNT, "replicas that found no GPU, each counted once",
               heads={START_TABLE: "Refused, no GPU"}, better=LESS),
        _summary("reinstated", COUNT, "removed replicas that returned",
                 START_TABLE, "Reinstated"),
        _summary("switches", COUNT, "replicas that changed their role",
                 START_TABLE, "Role changes"),
        Column("switches_per_day", NUMBER, "switched replicas per day of the window",
               lambda run: run.summary.switches * DAY_S / run.summary.duration_s,
               heads={START_TABLE: "Role changes per day"}),
        _summary("diverted", COUNT, "prompts that decode replicas took over from prefill",
                 START_TABLE, "Prompts taken over"),
        _summary("failures", COUNT, "replicas lost by faults", START_TABLE, "Replicas lost"),
        _summary("retried", COUNT, "requests restarted after the loss of a replica",
                 START_TABLE, "Requests begun again"),
        _summary("iterations", COUNT, "iterations of all replicas", flat=False),
        _summary("preemptions", COUNT, "sequences preempted because KV memory ran out", flat=False),
        _summary("outside_iterations", COUNT,
                 "iterations outside the measured range of the profiles", flat=False),
        _summary("wall_seconds", SECONDS, "duration of the simulation", flat=False),
        Column("peak_rss_mb", NUMBER, "largest memory of the process, MB",
               lambda run: peak_rss_mb(), flat=False),
        Column("tiers", TEXT, "by tier: the columns of `tiers`",
               lambda run: {tier.tier: TIERS.row(tier) for tier in tiers_of(run)}, flat=False),
        _summary("models", TEXT, "by model and home region: counts, attainment and latencies",
                 flat=False),
        _summary("pools", TEXT, "a row per pool: hours, energy, cost, starts", flat=False),
        Column("asked", FLAG, "whether the list of policies names it; the others are baselines"),
        Column("hindsight", FLAG, "whether it is an oracle baseline",
               lambda run: run.traits.uses_future_data),
        Column("survives", SHARE, "SLO attainment after losing one replica (or those of "
               "`objective.spare`), of the interactive tier closest to a miss; null if not "
               "simulated: a comparison does it for its alternatives and static fleets",
               heads={POLICY_TABLE: "SLO attainment, one replica lost"}, better=MORE),
        Column("n_plus_1", FLAG, "whether every interactive tier meets its SLO without it"),
        Column("flat_usd", USD, "cost of the smallest static fleet with the same attainment (to "
               "0.2 points); null if all policies attain the same, or if none fits"),
        Column("note", TEXT, "a remark, such as a signal that never moved", note_of,
               heads={POLICY_TABLE: "Note"}),
        Column("signal", TEXT, "signal of the policy: name, smallest and largest value, "
               "thresholds, and whether it crossed them", attrgetter("signal_range"), flat=False),
        Column("settings", TEXT, "parameters, targets, ratios, replicas and routing, per pool "
               "(`where`) or for all", flat=False),
    )
)  # fmt: skip
GROUPS = Columns(
    (
        Column("policy", TEXT, "key of the policy"),
        Column("tier", TEXT, "name, or all"),
        Column("model", TEXT, "name, or all", heads={GROUP_TABLE: "Model"}),
        Column("region", TEXT, "home region, or all", heads={GROUP_TABLE: "Region"}),
        Column("arrived", COUNT, "requests that arrived", heads={GROUP_TABLE: "Arrived"}),
        Column("lost", COUNT, "requests that were not served", flat=False,
               heads={GROUP_TABLE: "Not served"}),
        *(Column(name, COUNT, f"{name.replace('_', ' ')} requests") for name in OUTCOMES.values()),
        Column("attainment", SHARE, "share of arrived requests within every limit",
               heads={GROUP_TABLE: "SLO attainment"}),
        *(Column(name, NUMBER, "mean tokens") for name in ("mean_isl", "mean_osl")),
        *(Column(f"{name}_ms_p{share}", MS, "percentile of requests that have a value",
                 heads={GROUP_TABLE: f"{label} p{share}"})
          for name, label in (("ttft", "TTFT"), ("tbt", "TPOT"), ("e2e", "E2E"))
          for share in PERCENTILES),
    )
)  # fmt: skip
BY_NAME = replace(POLICIES, key="name")


def peak_rss_mb() -> float:
    """Return the largest resident memory of this process so far, in MB of 10^6 bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def tiers_table(runs: Sequence[PolicyRun]) -> pl.DataFrame:
    """Return a flat table of the figures of tiers, with a row per policy and tier."""
    return TIERS.table(tier for run in runs for tier in tiers_of(run))
