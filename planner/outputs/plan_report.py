"""Build the report of a plan, a comparison or a simulation from its result and tables."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from planner.domain.formats import digits, percent, when
from planner.domain.report import (
    Chart,
    Fact,
    Form,
    Head,
    Meaning,
    Note,
    Report,
    Section,
    Table,
    sources_section,
)
from planner.domain.sources import Fact as Source
from planner.models import Run
from planner.outputs.plan_charts import charts_of, costs_of
from planner.outputs.policy_tables import levels_of, parameter_words, policy_label
from planner.selectors.runs import run_result
from planner.selectors.savings import savings

DAY_S = 86_400.0


def plan_report(run: Run) -> Report:
    """Return the report of a plan, a comparison or a simulation."""
    result = run_result(run)
    window, take = result["window"], result.get("recommended") or {}
    clock = window.get("clock", "utc")
    ends = (when(window["start"], clock), when(window["end"], clock))
    answer = take.get("sentence") or result.get("headline") or _single_policy_answer(result)
    return Report(
        title=str(result.get("scenario") or run.name),
        answer=answer,
        why=_why(result, take, answer),
        about=f"{ends[0]} to {ends[1]}",
        facts=tuple(_facts(result, take)),
        warnings=(*_missed_warning(result, take), *(result.get("warnings") or ())),
        sections=tuple(_sections(run, result, take, clock)),
        clock=clock,
    )


def _why(result: dict[str, Any], take: dict[str, Any], answer: str) -> str:
    """Return the reason for the recommendation, its headline and the rank of its day.

    A part that another part repeats is dropped.
    """
    headline, why = result.get("headline") or "", take.get("why") or ""
    rank = (result["window"].get("rank") or {}).get("sentence")
    parts = ("" if why in headline else why, headline, rank)
    return " ".join(part for part in parts if part and part != answer)


def _single_policy_answer(result: dict[str, Any]) -> str:
    """Return the answer of a simulation of a single policy."""
    figures = _only_policy(result)
    return f"{figures.get('label', 'Policy')}: simulation of one policy"


def _only_policy(result: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of the first policy, or the result itself if it has none."""
    policies = result.get("policies") or {}
    return dict(next(iter(policies.values()), result))


def _facts(result: dict[str, Any], take: dict[str, Any]) -> Iterator[Fact]:
    """Yield the facts at the top."""
    policies = result.get("policies") or {}
    figures = policies.get(take.get("policy")) or take or _only_policy(result)
    window = result["window"]
    seconds = (
        datetime.fromisoformat(window["end"]) - datetime.fromisoformat(window["start"])
    ).total_seconds()
    cost = figures.get("cost_usd")
    if cost is not None:
        once = sum(figures.get(f"{when}_cost_usd") or 0.0 for when in ("before", "after"))
        day = (cost - once) * DAY_S / seconds
        note = "one day" if seconds == DAY_S else f"${digits(day)} per day"
        yield Fact("Cost of the window", cost, "$", note=note)
    base = result.get("baseline")
    if base in policies and take.get("policy") in policies and base != take["policy"]:
        costs = policies[take["policy"]]["cost_usd"], policies[base]["cost_usd"]
        # Prefer the saving at equal SLO attainment: costs of unequal service do not compare.
        share = take.get("equal_slo_saving")
        note = "cost at equal SLO attainment"
        if share is None and costs[1]:
            share, note = 1 - costs[0] / costs[1], "cost at different SLO attainment"
        if share is not None:
            meaning = Meaning.SAVING if share > 0.005 else Meaning.NEUTRAL
            yield Fact(f"vs {policies[base]['label']}", _saved(share), note=note, meaning=meaning)
    for tier, share in (figures.get("slo_attainment") or figures.get("attainment") or {}).items():
        target = ((figures.get("tiers") or {}).get(tier) or {}).get("target")
        note = f"target {percent(target)}" if target is not None else ""
        met = (figures.get("slo_met") or {}).get(tier)
        meaning = Meaning.NEUTRAL if met is None else Meaning.MET if met else Meaning.MISSED
        note += " · missed" if met is False else ""
        label = f"SLO attainment, {tier}"
        yield Fact(label, share, form=Form.SHARE, note=note.removeprefix(" · "), meaning=meaning)
    if (hours := figures.get("gpu_hours")) is not None:
        yield Fact("GPU-hours", hours, "h", note="busy, idle and starting")
    if (energy := figures.get("energy_kwh")) is not None:
        yield Fact("Energy", energy, "kWh", note="with host and PUE")
    if (carbon := figures.get("carbon_kg")) is not None:
        yield Fact("Carbon", carbon, "kg CO2e", note="grid factor of each region")


def _missed_warning(result: dict[str, Any], take: dict[str, Any]) -> Iterator[str]:
    """Yield a warning if the recommended policy misses an SLO target in this window."""
    figures = (result.get("policies") or {}).get(take.get("policy")) or {}
    if missed := [tier for tier, met in (figures.get("slo_met") or {}).items() if not met]:
        tested = " It passes every required test day." if take.get("qualifies") else ""
        tiers = " and ".join(missed)
        yield f"{figures['label']} misses its SLO target for {tiers} in this window.{tested}"


def _saved(share: float) -> str:
    """Return a saving as text."""
    if abs(share) < 0.005:
        return "same cost"
    return f"{abs(share):.0%} {'less' if share > 0 else 'more'}"


def _sections(
    run: Run, result: dict[str, Any], take: dict[str, Any], clock: str
) -> Iterator[Section]:
    """Yield the sections of the report in their order."""
    charts = charts_of(run, result)
    yield from _timetable(take, clock, charts)
    yield from _alternatives(result, take)
    yield from _test_days(result, take)
    yield from _assurance(result, take)
    yield from _forecasts(result)
    yield from _profiles(result)
    yield from _limits(result)
    yield from _assumptions(result)
    replayed = (result.get("replayed") or {}).get("sentence")
    notes = (*filter(None, [replayed]), *(result.get("notes") or ()))
    sources = [Source(r["what"], r["kind"], r["source"]) for r in result.get("provenance") or ()]
    yield from sources_section(sources, notes)


def _timetable(take: dict[str, Any], clock: str, charts: tuple[Chart, ...]) -> Iterator[Section]:
    """Yield the schedule of the recommended policy and the charts over time."""
    timetable = take.get("timetable")
    if not timetable or not timetable["pools"]:
        if charts:
            yield Section("Over time", charts)
        return
    heads = [Head("From", Form.MOMENT, "UTC" if clock == "utc" else "since trace start")]
    heads += [
        Head(
            f"{pool['replica']['model']}, {pool['region']}",
            Form.COUNT,
            f"replicas of {pool['replica']['arrangement']}",
        )
        for pool in timetable["pools"]
    ]
    rows = [[datetime.fromisoformat(r["begins"]), *r["replicas"]] for r in timetable["rows"]]
    note = (
        "First replicas. The policy then scales by its own rule."
        if timetable["by_itself"]
        else "Ready replicas per pool. Each row applies until the next."
    )
    table = Table(tuple(heads), tuple(map(tuple, rows)), note=note)
    yield Section("Replica schedule", (*charts, table), "Timetable")


def _alternatives(result: dict[str, Any], take: dict[str, Any]) -> Iterator[Section]:
    """Yield the comparison of policies."""
    policies = result.get("policies") or {}
    if not policies:
        return
    order = [name for name in result.get("ranking") or [] if name in policies]
    order = [*dict.fromkeys([*order, *policies])]
    tiers = list(dict.fromkeys(t for p in policies.values() for t in p.get("slo_attainment") or {}))
    base = str(result.get("baseline") or "")
    saved = savings(result, base) if base in policies else {}
    words = {yardstick["policy"]: yardstick["word"] for yardstick in take.get("yardsticks") or ()}
    heads = (
        Head("Policy", wide=3),
        Head("Meets SLO"),
        *(Head(f"SLO attainment: {tier}", Form.SHARE) for tier in tiers),
        Head("Cost", Form.NUMBER, "USD"),
        *((Head(f"Saving vs {policies[base]['label']}", Form.SHARE),) if saved else ()),
        Head("GPU", Form.NUMBER, "h"),
        Head("Energy", Form.NUMBER, "kWh"),
        Head("Carbon", Form.NUMBER, "kg CO2e"),
        Head("TTFT p95", Form.NUMBER, "ms"),
        Head("TPOT p95", Form.NUMBER, "ms"),
    )
    rows = [
        [
            f"{policies[name]['label']}, {words[name]}"
            if name in words
            else policy_label(policies[name]),
            "yes" if policies[name].get("meets_slo") else "no",
            *((policies[name].get("slo_attainment") or {}).get(tier) for tier in tiers),
            policies[name]["cost_usd"],
            *((saved[name]["cost_usd"]["fraction"],) if saved else ()),
            *(policies[name][measure] for measure in ("gpu_hours", "energy_kwh", "carbon_kg")),
            (policies[name].get("ttft_ms") or {}).get("p95"),
            (policies[name].get("tbt_ms") or {}).get("p95"),
        ]
        for name in order
    ]
    marked = frozenset(i for i, name in enumerate(order) if name == take.get("policy"))
    note = (
        "Sorted by cost; policies that miss an SLO last. Savings compare costs at the attainment "
        "of each policy. Oracle baselines use future data."
    )
    table = Table(heads, tuple(map(tuple, rows)), marked=marked, note=note)
    yield Section("Alternatives", (*costs_of(result), table))


def _test_days(result: dict[str, Any], take: dict[str, Any]) -> Iterator[Section]:
    """Yield the results of the policies on the test days, a row per day and policy."""
    days = result.get("test_days") or ()
    rows = [(day, name, on_day) for day in days for name, on_day in day["policies"].items()]
    if not rows:
        return
    tiers = list(dict.fromkeys(tier for _, _, on_day in rows for tier in on_day["attainment"]))
    policies = result.get("policies") or {}
    heads = (
        Head("Test day", wide=3),
        Head("Required"),
        Head("Weight", Form.NUMBER),
        Head("Policy", wide=3),
        Head("Passes"),
        Head("Cost", Form.NUMBER, "USD"),
        *(Head(f"SLO attainment: {tier}", Form.SHARE) for tier in tiers),
    )
    cells = tuple(
        (
            day["name"],
            "yes" if day["required"] else "no",
            day["weight"],
            policies[name]["label"] if name in policies else name,
            "yes" if on_day["passes"] else "no",
            on_day["cost_usd"],
            *(on_day["attainment"].get(tier) for tier in tiers),
        )
        for day, name, on_day in rows
    )
    marked = frozenset(i for i, (_, name, _) in enumerate(rows) if name == take.get("policy"))
    note = (
        "A policy qualifies if it passes every required test day. The cheapest of these is "
        "recommended, by its expected cost. For a lost replica, the share is the time in which "
        "the other replicas have enough capacity."
    )
    yield Section("Test days", (Table(heads, cells, marked=marked, note=note),))


def _assurance(result: dict[str, Any], take: dict[str, Any]) -> Iterator[Section]:
    """Yield the recommendation of each level of assurance."""
    levels = levels_of(result)
    if not levels:
        return
    tiers = list(dict.fromkeys(t for row in levels.values() for t in row["expected"]["attainment"]))
    heads = (
        Head("Assurance"),
        Head("Policy", wide=3),
        Head("Parameters", wide=2),
        Head("Passes required days"),
        *(Head(f"Expected cost{of}", Form.NUMBER, "USD") for of in (": mean", ": low", ": high")),
        *(Head(f"Expected SLO attainment: {tier}", Form.SHARE) for tier in tiers),
    )
    cells = tuple(
        (
            level,
            row["label"],
            parameter_words(row["parameters"]),
            "yes" if row["qualifies"] else "no",
            *((row["expected"]["cost_usd"] or {}).get(part) for part in ("mean", "low", "high")),
            *((row["expected"]["attainment"].get(tier) or {}).get("mean") for tier in tiers),
        )
        for level, row in levels.items()
    )
    marked = frozenset(i for i, level in enumerate(levels) if level == take.get("assurance"))
    note = "Expected values are over the weighted test days. Low and high: 80% interval."
    yield Section("Levels of assurance", (Table(heads, cells, marked=marked, note=note),))


def _forecasts(result: dict[str, Any]) -> Iterator[Section]:
    """Yield the errors of the forecasts."""
    rows = (result.get("forecast") or {}).get("series") or ()
    if not rows:
        return
    heads = (
        Head("Series", wide=3), Head("Method", wide=2), Head("WAPE", Form.SHARE),
        Head("Peak WAPE", Form.SHARE), Head("Coverage of the 80% band", Form.SHARE),
    )  # fmt: skip
    cells = [
        [
            " / ".join(filter(None, (row["model"], row["region"], row["tier"]))),
            row["method"], row["wape"], row["peak_wape"], row["coverage80"],
        ]
        for row in rows
    ]  # fmt: skip
    table = Table(heads, tuple(map(tuple, cells)), note="Errors of past forecasts.")
    yield Section("Forecast errors", (table,), "Forecast")


def _profiles(result: dict[str, Any]) -> Iterator[Section]:
    """Yield the errors of the profiles."""
    rows = result.get("profile_error") or ()
    if not rows:
        return
    heads = (
        Head("Model", wide=2), Head("GPUs", wide=2), Head("Error", Form.SHARE),
        Head("Basis", wide=3), Head("Replicas", Form.COUNT),
        Head("If slower", Form.COUNT), Head("If faster", Form.COUNT),
    )  # fmt: skip
    cells = [
        [
            row["model"], row.get("arrangement") or f"{row['tp']} x {row['gpu']}", row["error"],
            row["basis"], row["replicas"], row["replicas_if_slower"], row["replicas_if_faster"],
        ]
        for row in rows
    ]  # fmt: skip
    note = "Replicas at the peak, also if the profile is slower or faster by its error."
    table = Table(heads, tuple(map(tuple, cells)), note=note)
    yield Section("Profile errors", (table,), "Profiles")


def _limits(result: dict[str, Any]) -> Iterator[Section]:
    """Yield the binding constraints of the plan."""
    rows = (result.get("plan") or {}).get("binding") or ()
    if rows:
        heads = (Head("Constraint", wide=5), Head("Periods", Form.COUNT))
        table = Table(heads, tuple((row["sentence"], row["periods"]) for row in rows))
        yield Section("Binding constraints", (table,), "Constraints")


def _assumptions(result: dict[str, Any]) -> Iterator[Section]:
    """Yield the inputs with their sources."""
    rows = result.get("assumptions") or ()
    if not rows:
        return
    heads = (
        Head("Input", wide=2), Head("Value", wide=2), Head("Kind"), Head("Source", wide=3),
        Head("Effect", wide=2), Head("Scenario key", wide=2),
    )  # fmt: skip
    cells = [
        [row["what"], row["value"], row["provenance"], row["source"], row.get("matters", ""),
         row["key"]]
        for row in rows
    ]  # fmt: skip
    assumed = sum(row["provenance"] == "assumed" for row in rows)
    note = Note(f"{assumed} of {len(rows)} inputs are assumed.")
    yield Section("Assumptions", (note, Table(heads, tuple(map(tuple, cells)))))
