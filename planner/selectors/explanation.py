"""Explain the recommended number of replicas of each pool from the result of its run.

The explanation is a chain of steps: demand, forecast, size, plan, provenance and error.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.domain.formats import counted, figure
from planner.domain.report import limit_name
from planner.domain.sizing.size_errors import SIMULATION
from planner.domain.traffic.window import words_of
from planner.models import Run
from planner.policies.registry import traits_of
from planner.selectors.runs import run_result, run_table, run_tables

Row = Mapping[str, Any]
MAX_LIMITS = 2  # binding constraints that a step states


@dataclass(frozen=True, slots=True)
class Step:
    """One step of an explanation; ``about`` is the section of the page with its details."""

    name: str
    sentence: str
    about: str


@dataclass(frozen=True, slots=True)
class Chain:
    """Why a pool has its largest number of replicas: the steps that lead to it."""

    model: str
    region: str
    replica: str
    replicas: int
    steps: tuple[Step, ...]


def explanation_chains(run: Run) -> tuple[Chain, ...]:
    """Return the chain of steps for every pool of the plan; () if there is no plan."""
    result = run_result(run)
    if not result.get("recommended") or not (result.get("plan") or {}).get("decisions"):
        return ()
    rows = run_table(run, "plan").to_dicts() if "plan" in run_tables(run) else []
    chains = []
    for (model, region, replica, role), count in _largest_counts(result).items():
        pool = {"model": model, "region": region, "arrangement": replica}
        planned = [row for row in rows if _matches(row, pool)]
        pool["role"] = role
        chains.append(
            Chain(model, region, replica, count, tuple(_steps(result, pool, planned, count)))
        )
    return tuple(chains)


def _steps(result: Row, pool: Row, planned: Sequence[Row], count: int) -> Iterator[Step]:
    """Yield the steps that explain the replicas of a pool, from demand to error.

    ``pool`` has its model, region and arrangement. ``planned`` are the rows of the table "plan" for
    it, ``count`` is its largest number of replicas.
    """
    recommended = result["recommended"]
    # The period with the most replicas, then the most demand.
    peak = max(planned, key=lambda row: (row["target"], row["demand_tps"]), default=None)
    capacity = _row_of_replica(result.get("capacity"), pool)
    if peak is not None:
        yield from _demand_steps(result, peak, max(row["demand_tps"] for row in planned))
    yield from _forecast_steps(result, pool)
    if capacity is not None:
        yield Step(
            "One replica",
            f"{capacity['input_tps']:,.0f} input tokens/s "
            f"({figure(capacity['max_rps'], 'req/s')}). "
            f"Limited by {limit_name(capacity['bound_by'])} (tier {capacity['tier']}).",
            about="capacity",
        )
    if not recommended.get("follows_plan"):
        reason = recommended.get("why") or recommended["sentence"]
        yield Step(
            "Policy",
            f"{recommended['label']} is recommended instead of the plan, with {count:,} replicas "
            f"here. {reason}",
            about="policies",
        )
    if peak is not None:
        pool_tps = capacity.get("pool_tps") if capacity else None
        yield _plan_step(result, pool, peak, pool_tps or [])
    if capacity is not None:
        yield _provenance_step(result, pool, capacity)
    yield from _error_steps(result, pool)


def _demand_steps(result: Row, peak: Row, largest_tps: float) -> Iterator[Step]:
    """Yield the steps on the demand that the plan covers.

    ``peak`` is the row of the plan with the most replicas. ``largest_tps`` is the largest demand of
    any period, in input tokens/s.
    """
    recommended = result["recommended"]
    clock = (result.get("window") or {}).get("clock", "utc")
    begins = words_of(peak["period_start"].timestamp(), clock)
    covered = f"Peak: {largest_tps:,.0f} input tokens/s"
    if round(peak["demand_tps"]) == round(largest_tps):
        sentence = f"{covered}, in the period from {begins}."
    else:
        needs = f"for {peak['demand_tps']:,.0f}, in the period from {begins}"
        sentence = f"{covered}. Most replicas: {needs}."
    yield Step("Demand", sentence, about="charts")
    factor = (recommended.get("parameters") or {}).get("load_factor", 1)
    if recommended.get("follows_plan") and factor != 1:
        sentence = (
            f"Load factor {factor:g}: the cheapest value with which the plan passes the test days."
        )
        if traits_of(recommended["policy"]).may_exceed_plan:
            sentence += " Above the planned load, the guard adds replicas."
        yield Step("Load factor", sentence, about="test-days")


def _largest_counts(result: Row) -> dict[tuple[str, str, str, str], int]:
    """Return the largest recommended number of replicas over time, if above 0.

    The keys are (model, region, arrangement, role) of pools.
    """
    counts: dict[tuple[str, str, str, str], int] = {}
    timetable = result["recommended"].get("timetable")
    if timetable and timetable["pools"]:
        for i, pool in enumerate(timetable["pools"]):
            replica = pool["replica"]
            role = replica.get("role", "mixed")
            key = replica["model"], pool["region"], replica["arrangement"], role
            counts[key] = max((row["replicas"][i] for row in timetable["rows"]), default=0)
    else:
        for row in result["plan"]["decisions"]:
            arrangement, role = row.get("arrangement", row["gpu"]), row.get("role", "mixed")
            key = row["model"], row["region"], arrangement, role
            counts[key] = max(counts.get(key, 0), row["target"])
    return {key: count for key, count in counts.items() if count}


def _matches(row: Row, pool: Row) -> bool:
    """Return whether a row has the values of ``pool``; a column that it lacks matches any."""
    return all(row.get(name, value) == value for name, value in pool.items())


def _row_of_replica(rows: Sequence[Row] | None, pool: Row) -> Row | None:
    """Return the first of ``rows`` with the model and arrangement of ``pool``, or None."""
    replica = {name: pool[name] for name in ("model", "arrangement")}
    return next((row for row in rows or () if _matches(row, replica)), None)


def _forecast_steps(result: Row, pool: Row) -> Iterator[Step]:
    """Yield the steps on the forecasts of the pool's model and region, by tier.

    They state the method, its error and the percentile that is planned for.
    """
    forecast = result.get("forecast") or {}
    percentiles = {row["tier"]: row for row in forecast.get("quantile") or []}
    for series in forecast.get("series") or []:
        if (series["model"], series["region"]) != (pool["model"], pool["region"]):
            continue
        peak_error = series.get("peak_wape")
        error_words = "" if peak_error is None else f", peak WAPE {peak_error:.0%}"
        sentence = f"{series['tier'].capitalize()} demand: {series['method']}{error_words}."
        yield Step("Forecast", sentence, about="forecast")
        percentile = percentiles.get(series["tier"])
        if percentile is not None:
            level = percentile["quantile"]
            level_words = "the mean" if level is None else f"P{100 * level:g}"
            factor = "" if percentile["times"] == 1 else f"{percentile['times']:g} times "
            sentence = f"{series['tier']}: {factor}{level_words}. {percentile['why']}"
            yield Step("Percentile", sentence, about="forecast")


def _plan_step(result: Row, pool: Row, peak: Row, pool_tps: Sequence[float]) -> Step:
    """Return the step on the planned replicas at ``peak`` and on the limits that require them.

    ``peak`` is the row of the plan with the most replicas. ``pool_tps[n - 1]`` is the capacity of n
    replicas, in input tokens/s.
    """
    facts = [counted(peak["target"], "replica")]
    capacity_tps = None
    if 0 < peak["target"] <= len(pool_tps):
        capacity_tps = pool_tps[peak["target"] - 1]
        facts.append(f"pool capacity: {capacity_tps:,.0f} input tokens/s")
    if capacity_tps is None or round(capacity_tps) != round(peak["capacity_tps"]):
        tps_words = f"{peak['capacity_tps']:,.0f} input tokens/s"
        facts.append(f"capacity of the region, limited by its slowest role: {tps_words}")
    binding = []
    for limit in result["plan"].get("binding") or []:
        if _explains(limit, pool, peak["target"]):
            # Leave out the name of the pool, which the head of the chain states.
            _pool_name, _, reason = limit["sentence"].partition(": ")
            binding.append(_sentences([reason.rstrip(".")]) if reason else limit["sentence"])
    return Step("Plan", " ".join([_sentences(facts), *binding[:MAX_LIMITS]]), about="plan")


def _explains(limit: Row, pool: Row, replicas: int) -> bool:
    """Return whether a binding constraint explains the ``replicas`` of a pool, its most.

    Runs of earlier versions do not say which pools a constraint limits. It then explains none.
    """
    if limit.get("model") != pool["model"] or limit["region"] not in (None, pool["region"]):
        return False
    limits_other_role = {limit["role"], pool["role"]} == {"prefill", "decode"}
    # A demand that binds only in periods with fewer replicas does not explain the most.
    _least, most = limit.get("replicas") or (0, replicas)
    return not limits_other_role and replicas <= most


def _provenance_step(result: Row, pool: Row, size: Row) -> Step:
    """Return the step on the sources of the pool's speed and price."""
    price = f"Price of {size['gpu']} in {pool['region']}"
    facts = [f"its speed is {size['provenance']} ({size['source']})"]
    for source in result.get("provenance") or []:
        if source["what"] == price:
            facts.append(f"its price is {source['kind']} ({source['source']})")
    return Step("Where from", _sentences(facts), about="sources")


def _error_steps(result: Row, pool: Row) -> Iterator[Step]:
    """Yield the steps on the errors of simulation and profile."""
    sentence = (
        f"Sampling error of capacity: median {SIMULATION.median:.1%}, P95 {SIMULATION.p95:.1%}."
    )
    yield Step("Simulation error", sentence, about="profiles")
    row = _row_of_replica(result.get("profile_error"), pool)
    if row is None:
        return
    if row["error"] is None:
        yield Step("Profile error", f"Unknown: {row['basis']}.", about="profiles")
        return
    facts = [f"{row['error']:.1%} ({row['basis']})"]
    if row["replicas_if_slower"] is not None and row["replicas_if_faster"] is not None:
        facts.append(
            f"combined peak of all regions: {row['replicas']:,} replicas, "
            f"{row['replicas_if_slower']:,} if the profile is slower by this error, "
            f"{row['replicas_if_faster']:,} if faster"
        )
    yield Step("Profile error", _sentences(facts), about="profiles")


def shared_steps(chains: Sequence[Chain]) -> tuple[Step, ...]:
    """Return the steps that the chains of all pools share; () for fewer than two chains."""
    if len(chains) < 2:
        return ()
    first, *others = chains
    return tuple(step for step in first.steps if all(step in chain.steps for chain in others))


def _sentences(facts: Sequence[str]) -> str:
    """Return each fact as a sentence, with a capital letter and a full stop."""
    return ". ".join(fact[:1].upper() + fact[1:] for fact in facts) + "."
