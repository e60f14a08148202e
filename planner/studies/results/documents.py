"""Typed values to the result documents that command line, API and pages show (docs/results.md).

NaN never leaves here: what could not be computed is None.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from planner.optimizer.problem import FEASIBLE, OPTIMAL, ScalingPlan
from planner.scenario.build import Hardware
from planner.studies.results.comparison import PolicyComparison
from planner.studies.results.figures import POLICIES
from planner.studies.sizing.sizing import Sizes
from planner.studies.traffic.forecasts import SeriesForecast
from planner.studies.traffic.traffic import FORECAST, MEASURED, Traffic
from planner.studies.traffic.window import Window
from planner.studies.values import PolicyRun, Study

Document = dict[str, Any]


def moment(epoch_s: float) -> str:
    """ISO 8601 in UTC, to the second."""
    return datetime.fromtimestamp(round(epoch_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def window_document(window: Window, traffic: Traffic) -> Document:
    return {
        "start": moment(window.start_s),
        "end": moment(window.end_s),
        "period_s": window.period_s,
        "bin_s": window.bin_s,
        "lead_s": window.lead_s,
        "clock": traffic.clock,
        "replay": FORECAST if window.ahead else traffic.replay,
    }


def forecast_document(forecasts: Iterable[SeriesForecast]) -> list[Document]:
    return [
        {
            "model": one.key.model,
            "region": one.key.region,
            "tier": one.key.tier,
            "method": one.method,
            "order": one.order,
            "unit": "input_tokens",
            **one.errors,
            "fit_seconds": one.fit_seconds,
            "forecast": [clean(v) for v in one.mean.tolist()],
        }
        for one in forecasts
    ]


def capacity_document(sizes: Sizes, hardware: Hardware) -> list[Document]:
    return [
        {
            "model": hardware.models[m].name,
            "gpu": hardware.gpus[g].name,
            "tp": hardware.profiles[m, g].tp,
            "role": hardware.role(g),
            "market": hardware.market(g),
            "arrangement": hardware.arrangement(m, g),
            "max_rps": clean(found.max_rps),
            "input_tps": clean(found.input_tps),
            "ttft_ms": clean(found.ttft_s * 1000),
            "tbt_ms": clean(found.tbt_s * 1000),
            "bound_by": found.bound_by,
            "tier": tier,
            "provenance": hardware.profiles[m, g].provenance.kind,
            "source": hardware.profiles[m, g].provenance.source,
        }
        for (m, g), (tier, found) in sizes.capacity.items()
    ]


def plan_document(plan: ScalingPlan, hardware: Hardware) -> Document:
    """The plan as ``bin/manage plan`` prints it; money is of the whole window, all periods
    together, and each period's bound holds for the fleet that the one before left."""
    hours = plan.period_s / 3600
    windows = plan.windows
    before = [plan.initial, *plan.target[:-1]]
    fleet_cost = sum(window.fleet_usd for window in windows) * hours
    objective = sum(window.objective_usd for window in windows) * hours
    bound = sum(window.bound_usd for window in windows) * hours
    statuses = {window.status for window in windows}
    return {
        "status": OPTIMAL if statuses == {OPTIMAL} else FEASIBLE,
        "objective": objective,
        "fleet_cost": fleet_cost,
        "bound": bound,
        "gap": (objective - bound) / fleet_cost if fleet_cost else 0.0,
        "solver": windows[0].solver,
        "build_seconds": sum(window.build_seconds for window in windows),
        "solve_seconds": sum(window.solve_seconds for window in windows),
        "decisions": [
            {
                "period": moment(start_s),
                "model": plan.models[m],
                "region": plan.regions[r],
                "gpu": hardware.gpus[g].name,
                "tp": hardware.profiles[m, g].tp,
                "role": hardware.role(g),
                "market": hardware.market(g),
                "arrangement": hardware.arrangement(m, g),
                "current": int(current[m, r, g]),
                "delta": int(window.target[m, r, g] - current[m, r, g]),
                "target": int(window.target[m, r, g]),
            }
            for start_s, window, current in zip(plan.period_start_s, windows, before, strict=True)
            for m, r, g in hardware.pool_index
        ],
        "binding": _binding(plan),
    }


def _binding(plan: ScalingPlan) -> list[Document]:
    """What binds, over all periods: each constraint once, with in how many periods and the words
    of the first."""
    found: dict[tuple[str, str], Document] = {}
    for window in plan.windows:
        for bound in window.binding:
            entry = found.setdefault(
                (bound.family, bound.where),
                {
                    "family": bound.family,
                    "where": bound.where,
                    "sentence": bound.sentence,
                    "periods": 0,
                },
            )
            entry["periods"] += 1
    return sorted(found.values(), key=lambda entry: -int(entry["periods"]))


def policy_document(run: PolicyRun) -> Document:
    return POLICIES.row(run)


def comparison_document(comparison: PolicyComparison) -> Document:
    return {
        "policies": {run.name: policy_document(run) for run in comparison.runs},
        "baselines": [run.name for run in comparison.runs],
        "baseline": comparison.baseline,
        "ranking": list(comparison.ranking),
        "headline": comparison.headline,
        "warnings": list(comparison.warnings),
        "flat_wins": comparison.flat_wins,
        "recommendations": [asdict(one) for one in comparison.recommendations],
    }


def provenance_document(study: Study) -> list[Document]:
    facts = [
        {"what": what, "kind": source.kind, "source": source.source}
        for what, source in study.hardware.provenance
    ]
    replay = FORECAST if study.window.ahead else study.traffic.replay
    kind = "measured" if replay == MEASURED else "modelled"
    facts.append({"what": "Traffic", "kind": kind, "source": replay})
    if study.hardware.today is None:
        facts.append(
            {
                "what": "Today's fleet",
                "kind": "assumed",
                "source": "the scenario does not say; a flat fleet at peak stands in",
            }
        )
    facts.append(
        {
            "what": "Replicas, latencies, GPU-hours, energy, cost, carbon",
            "kind": "modelled",
            "source": "request-level simulation on the facts above",
        }
    )
    return facts


def clean(value: float) -> float | None:
    return value if math.isfinite(value) else None


def cleaned(value: Any) -> Any:
    """``value`` with every float that is not finite replaced by None."""
    if isinstance(value, float):
        return clean(value)
    if isinstance(value, dict):
        return {key: cleaned(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [cleaned(item) for item in value]
    return value
