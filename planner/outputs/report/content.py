"""Build the content of a report from the result and the tables of a run."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from planner.errors import NotReady
from planner.models import Proposal, Run
from planner.outputs.policy_tables import labelled
from planner.outputs.report.charts import (
    charts_of,
    costs_of,
)
from planner.outputs.report.values import (
    Form,
    Head,
    Report,
    Section,
    SignOff,
    Table,
    rows_of,
)
from planner.selectors.review import approvals_of, proposal_approved
from planner.selectors.runs import run_result
from planner.selectors.savings import savings
from planner.templatetags.headroom import digits, percent, when

KINDS = (Run.Kind.PLAN, Run.Kind.COMPARE, Run.Kind.SIMULATE)
PREPARED, REVIEWED, APPROVED = "Prepared by", "Reviewed by", "Approved by"
DAY_S = 86_400.0
GROUNDS = {
    "measured": "was measured on the thing itself",
    "published": "stands in a source that is named",
    "modelled": "follows from a model of ours",
    "assumed": "is taken for granted",
}


def report_of(run: Run, now: datetime) -> Report:
    """Return the report of a run.

    Raises NotReady if the kind of the run has no report.
    """
    result = run_result(run)
    if run.kind not in KINDS:
        raise NotReady(
            f"Run {run.pk} ({run.get_kind_display().lower()}) has no report; export it to json or "
            "csv, or report on a plan, a comparison or a simulation."
        )
    window, take = result["window"], result.get("recommended") or {}
    clock = window.get("clock", "utc")
    ends = (when(window["start"], clock), when(window["end"], clock))
    answer = take.get("sentence") or result.get("headline") or _alone(result)
    return Report(
        run=run.pk,
        title=str(result.get("scenario") or run.name),
        kind=run.get_kind_display(),
        computed=when(run.finished_at),
        written=when(now),
        version=run.code_version,
        window=f"{ends[0]} to {ends[1]}",
        clock=clock,
        answer=answer,
        why=_why(result, take, answer),
        facts=tuple(_facts(run, result, take)),
        sections=tuple(_sections(run, result, take, clock)),
        sign_offs=tuple(_sign_offs(run, str(take.get("policy")))),
    )


def _why(result: dict[str, Any], take: dict[str, Any], answer: str) -> str:
    """Return the reason for the recommendation, its headline and the rank of its day.

    A part that another part repeats is dropped.
    """
    headline, why = result.get("headline") or "", take.get("why") or ""
    rank = (result["window"].get("rank") or {}).get("sentence")
    parts = ("" if why in headline else why, headline, rank)
    return " ".join(part for part in parts if part and part != answer)


def _alone(result: dict[str, Any]) -> str:
    """Return the answer of a simulation of a single policy."""
    figures = _only_policy(result)
    return f"{figures.get('label', 'The policy')}, replayed by itself."


def _only_policy(result: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of the first policy, or the result itself if it has none."""
    policies = result.get("policies") or {}
    return dict(next(iter(policies.values()), result))


def _sign_offs(run: Run, policy: str) -> Iterator[SignOff]:
    """Yield who proposed and who approved the plan, or empty lines to sign."""
    decided = proposal_approved(run.pk, policy)
    if decided is None:
        yield from (SignOff(role) for role in (PREPARED, REVIEWED, APPROVED))
        return
    who = decided.author.username if decided.author else decided.rule
    yield SignOff(PREPARED, who, f"proposal {decided.pk}", when(decided.created_at))
    for entry in approvals_of(decided):
        name = entry.by.username if entry.by else entry.rule
        yield SignOff(APPROVED, name, f"approved revision {entry.revision}", when(entry.at))


def _facts(
    run: Run, result: dict[str, Any], take: dict[str, Any]
) -> Iterator[tuple[str, str, str]]:
    """Yield (label, figure, note) of the facts at the top."""
    policies = result.get("policies") or {}
    figures = policies.get(take.get("policy")) or take or _only_policy(result)
    if (decided := proposal_approved(run.pk, str(take.get("policy")))) is not None:
        yield "Approved", f"Proposal {decided.pk}", _approval(decided)
    window = result["window"]
    seconds = (
        datetime.fromisoformat(window["end"]) - datetime.fromisoformat(window["start"])
    ).total_seconds()
    cost = figures.get("cost_usd")
    if cost is not None:
        day = cost * DAY_S / seconds
        note = "" if seconds == DAY_S else f"${digits(day)} a day if all of it were like this"
        yield "Cost of the window", f"${digits(cost)}", note or "of one day"
    base = result.get("baseline")
    if base in policies and take.get("policy") in policies and base != take["policy"]:
        its = policies[take["policy"]]["cost_usd"], policies[base]["cost_usd"]
        # Prefer the saving at equal SLO attainment: costs of unequal service do not compare.
        share = take.get("equal_slo_saving")
        if share is not None:
            note = "at equal service, cost"
            yield f"Against {policies[base]['label']}", _saved(share), note
        elif its[1]:
            note = "in cost as it stands; they do not serve equally well"
            yield f"Against {policies[base]['label']}", _saved(1 - its[0] / its[1]), note
    for tier, share in (figures.get("slo_attainment") or figures.get("attainment") or {}).items():
        target = ((figures.get("tiers") or {}).get(tier) or {}).get("target")
        note = f"{percent(target)} asked" if target is not None else "of its requests"
        missed = (figures.get("slo_met") or {}).get(tier) is False
        yield f"In time: {tier}", percent(share), f"{note}: missed" if missed else note
    if (hours := figures.get("gpu_hours")) is not None:
        note = "busy, idle and starting"
        yield "GPU-hours", digits(hours), note
    if (energy := figures.get("energy_kwh")) is not None:
        yield "Energy", f"{digits(energy)} kWh", "host and PUE included"
    if (carbon := figures.get("carbon_kg")) is not None:
        yield "Carbon", f"{digits(carbon)} kg CO2e", "by the grid's factor of each region"


def _approval(proposal: Proposal) -> str:
    """Return who approved a proposal, or which rule, and when."""
    by = [
        approval.by.username if approval.by else approval.rule
        for approval in approvals_of(proposal)
    ]
    return f"by {' and '.join(by)}, {when(proposal.decided_at)}"


def _missed(result: dict[str, Any], take: dict[str, Any]) -> Iterator[str]:
    """Yield a warning if the recommended policy misses an SLO target in this window."""
    figures = (result.get("policies") or {}).get(take.get("policy")) or {}
    if missed := [tier for tier, met in (figures.get("slo_met") or {}).items() if not met]:
        yield (
            f"{figures['label']} is recommended, and in this window it misses its target for "
            f"{' and '.join(missed)}: the days before did not tell."
        )


def _saved(share: float) -> str:
    """Return a saving as text."""
    if abs(share) < 0.005:
        return "as much"
    return f"{abs(share):.0%} {'less' if share > 0 else 'more'}"


def _sections(
    run: Run, result: dict[str, Any], take: dict[str, Any], clock: str
) -> Iterator[Section]:
    """Yield the sections of the report in their order."""
    charts = charts_of(run, result)
    yield from _timetable(take, clock, charts)
    yield from _alternatives(result, take)
    # A missed SLO target comes before every other warning.
    if warnings := (*_missed(result, take), *(result.get("warnings") or ())):
        yield Section("What to know before deciding", "Warnings", items=warnings)
    yield from _sure(result, take)
    yield from _forecasts(result)
    yield from _profiles(result)
    yield from _limits(result)
    yield from _assumptions(result)
    if rows := result.get("provenance"):
        heads = (Head("What", wide=2), Head("Kind"), Head("Source", wide=4))
        table = Table(heads, rows_of([[r["what"], r["kind"], r["source"]] for r in rows]))
        replayed = (result.get("replayed") or {}).get("sentence")
        notes = (*filter(None, [replayed]), *(result.get("notes") or ()))
        yield Section("Where the numbers come from", "Provenance", items=notes, table=table)


def _timetable(take: dict[str, Any], clock: str, charts: Any) -> Iterator[Section]:
    """Yield the schedule of the recommended policy and the charts over time."""
    timetable = take.get("timetable")
    if not timetable or not timetable["pools"]:
        if charts:
            yield Section("Over time", "Over time", charts=charts)
        return
    heads = [Head("From", Form.MOMENT, "UTC" if clock == "utc" else "since the trace began")]
    heads += [
        Head(
            f"{pool['replica']['model']}, {pool['region']}",
            Form.COUNT,
            f"replicas of {pool['replica']['arrangement']}",
        )
        for pool in timetable["pools"]
    ]
    rows = [[datetime.fromisoformat(r["begins"]), *r["replicas"]] for r in timetable["rows"]]
    words = (
        "It begins with these replicas and goes on by its own rule."
        if timetable["by_itself"]
        else "Replicas to have ready; a row where something changes, each holding until the next."
    )
    table = Table(tuple(heads), rows_of(rows))
    yield Section("What to run, when", "Timetable", (words,), charts=charts, table=table)


def _alternatives(result: dict[str, Any], take: dict[str, Any]) -> Iterator[Section]:
    """Yield the comparison of policies, and the recommendation by objective."""
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
        Head("Meets its targets"),
        *(Head(f"In time: {tier}", Form.SHARE) for tier in tiers),
        Head("Cost", Form.NUMBER, "USD"),
        *((Head(f"Saved against {policies[base]['label']}", Form.SHARE),) if saved else ()),
        Head("GPU", Form.NUMBER, "h"),
        Head("Energy", Form.NUMBER, "kWh"),
        Head("Carbon", Form.NUMBER, "kg CO2e"),
        Head("TTFT p95", Form.NUMBER, "ms"),
        Head("TBT p95", Form.NUMBER, "ms"),
    )
    rows = [
        [
            f"{policies[name]['label']}, {words[name]}"
            if name in words
            else labelled(policies[name]),
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
    notes = (
        "Best first: those that meet every target by cost, then the others by how far they miss. "
        "Savings compare costs as they stand; where two do not serve equally well they are not "
        "like for like. What was sized in hindsight or told what came is a yardstick that nobody "
        "can run.",
    )
    table = Table(heads, rows_of(rows), marked)
    charts = costs_of(result)
    yield Section("The alternatives", "Alternatives", notes, charts=charts, table=table)
    if recommendations := result.get("recommendations"):
        heads = (Head("By"), Head("Take", wide=2), Head("Why", wide=4))
        by = [
            [recommendation["objective"], recommendation["label"], recommendation["reason"]]
            for recommendation in recommendations
        ]
        table = Table(heads, rows_of(by))
        yield Section("Which to take, by objective", "By objective", table=table)


def _sure(result: dict[str, Any], take: dict[str, Any]) -> Iterator[Section]:
    """Yield the sensitivity of the recommendation."""
    if not (rows := take.get("sure")):
        return
    tiers = list(dict.fromkeys(tier for row in rows for tier in row["attainment"]))
    heads = (
        Head("What if", wide=3),
        Head("Meets its targets"),
        *(Head(f"In time: {tier}", Form.SHARE) for tier in tiers),
        Head("Cost", Form.NUMBER, "USD"),
    )
    table = rows_of(
        [
            [
                row["what"],
                "yes" if row["meets_slo"] else "no",
                *(row["attainment"].get(tier) for tier in tiers),
                row["cost_usd"],
            ]
            for row in rows
        ]
    )
    words = ("The recommendation replayed once more with one thing changed at a time.",)
    yield Section("How sure it is", "How sure", words, table=Table(heads, table))


def _forecasts(result: dict[str, Any]) -> Iterator[Section]:
    """Yield the errors of the forecasts."""
    rows = (result.get("forecast") or {}).get("series") or ()
    if not rows:
        return
    heads = (
        Head("Series", wide=3), Head("Method", wide=2), Head("Error (WAPE)", Form.SHARE),
        Head("Error of peaks", Form.SHARE), Head("In its 80% band", Form.SHARE),
    )  # fmt: skip
    cells = [
        [
            " / ".join(filter(None, (row["model"], row["region"], row["tier"]))),
            row["method"], row["wape"], row["peak_wape"], row["coverage80"],
        ]
        for row in rows
    ]  # fmt: skip
    words = ("By backtest: forecasts from past moments against what came.",)
    yield Section("Errors of the forecast", "Forecast", words, table=Table(heads, rows_of(cells)))


def _profiles(result: dict[str, Any]) -> Iterator[Section]:
    """Yield the errors of the profiles."""
    rows = result.get("profile_error") or ()
    if not rows:
        return
    heads = (
        Head("Model", wide=2), Head("On", wide=2), Head("Error", Form.SHARE),
        Head("Of what", wide=3), Head("Replicas", Form.COUNT),
        Head("If slower by it", Form.COUNT), Head("If faster", Form.COUNT),
    )  # fmt: skip
    cells = [
        [
            row["model"], row.get("arrangement") or f"{row['tp']} x {row['gpu']}", row["error"],
            row["basis"], row["replicas"], row["replicas_if_slower"], row["replicas_if_faster"],
        ]
        for row in rows
    ]  # fmt: skip
    words = ("How far profiles are off their measurements, and what the peak would take then.",)
    yield Section("Errors of the profiles", "Profiles", words, table=Table(heads, rows_of(cells)))


def _limits(result: dict[str, Any]) -> Iterator[Section]:
    """Yield the binding constraints of the plan."""
    rows = (result.get("plan") or {}).get("binding") or ()
    if rows:
        heads = (Head("What binds", wide=5), Head("Periods", Form.COUNT))
        table = Table(heads, rows_of([[row["sentence"], row["periods"]] for row in rows]))
        yield Section("What limits the plan", "Limits", table=table)


def _assumptions(result: dict[str, Any]) -> Iterator[Section]:
    """Yield the inputs with their sources."""
    rows = result.get("assumptions") or ()
    if not rows:
        return
    heads = (
        Head("What", wide=2), Head("Value", wide=2), Head("Kind"), Head("From", wide=3),
        Head("How much it matters", wide=2), Head("Key in the scenario", wide=2),
    )  # fmt: skip
    cells = [
        [row["what"], row["value"], row["provenance"], row["source"], row.get("matters", ""),
         row["key"]]
        for row in rows
    ]  # fmt: skip
    kinds = {row["provenance"] for row in rows}
    assumed = sum(row["provenance"] == "assumed" for row in rows)
    meaning = "; ".join(f"{kind}: {what}" for kind, what in GROUNDS.items() if kind in kinds)
    words = (f"{len(rows)} inputs, of which {assumed} are assumed. {meaning[:1].upper()}"
             f"{meaning[1:]}.",)  # fmt: skip
    yield Section("What it rests on", "Assumptions", words, table=Table(heads, rows_of(cells)))
