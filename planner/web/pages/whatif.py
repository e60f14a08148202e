"""Build what-if in place: the sliders of a stored plan, the changes and the new plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from typing import Any

from planner.domain.columns import (
    COUNT,
    HOURS,
    KG,
    KWH,
    USD,
)
from planner.domain.formats import NOTHING, figure, signed_percent
from planner.domain.whatif.answer import WhatIf
from planner.errors import PlannerError
from planner.models import Run
from planner.outputs.table_text import shown
from planner.services.whatif import Changes, KeptBasis, kept_of, run_what_if

TAKEN = (  # totals of the plan
    ("usd", "Cost of the window", USD),
    ("gpu_hours", "GPU-hours", HOURS),
    ("kwh", "Energy, modelled at the sized load", KWH),
    ("carbon_kg", "Carbon of that energy", KG),
    ("starts", "Starts", COUNT),
)
OTHER = 1e-3  # relative difference in cost above which it is another plan
ALIKE = 1e-6  # relative difference below which a slider counts as not moved
UNITS = {"ttft_ms": "ms", "tbt_ms": "ms", "percentile": "%"}
WORDS = {"ttft_ms": "TTFT limit", "tbt_ms": "TBT limit", "percentile": "in time, at least"}


@dataclass(frozen=True, slots=True)
class Knob:
    """A slider, or a number field if ``step`` is None; ``value`` is its value in the run."""

    name: str
    label: str
    unit: str
    value: float
    least: float
    most: float
    step: float | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    label: str
    before: str
    now: str
    change: str


def knobs_of(kept: KeptBasis) -> list[Knob]:
    scenario, basis = kept.scenario, kept.basis
    knobs = [Knob("growth", "Demand", "times", 1.0, 0.25, 4.0, 0.05)]
    if basis.series and basis.flat is None:  # a static fleet does not use a forecast
        level = basis.series[0].level
        times = basis.series[0].times
        note = "it plans for the mean" if level is None else ""
        if times != 1.0:
            note = f"it plans for {times:g} times that"
        knobs.append(
            Knob("quantile", "Quantile planned for", "", level or 0.5, 0.05, 0.95, 0.05, note)
        )
    spare = scenario.objective.spare.instances
    knobs.append(Knob("spare", "Spare instances, of each pool", "", spare, 0, 100, None))
    for tier in scenario.tiers:
        if tier.deferrable:
            continue
        for limit in ("ttft_ms", "tbt_ms"):
            value = getattr(tier, limit)
            if value is not None:
                knobs.append(
                    Knob(f"{limit}.{tier.name}", f"{tier.name}: {WORDS[limit]}", UNITS[limit],
                         value, value / 4, value * 4, value / 20)
                )  # fmt: skip
        knobs.append(
            Knob(f"percentile.{tier.name}", f"{tier.name}: {WORDS['percentile']}", "%",
                 tier.percentile, 50, 99.9, None)
        )  # fmt: skip
    gpus = gpus_of(kept)
    if gpus[1:]:  # with one type only, its share is always all
        knobs += [Knob(f"mix.{gpu}", f"{gpu}: of a region's GPUs, at most", "%", 100, 0, 100, 5)
                  for gpu in gpus]  # fmt: skip
    knobs += [
        Knob(f"price.{gpu}", f"Price of {gpu}", "times", 1.0, 0.25, 4.0, 0.05) for gpu in gpus
    ]
    return knobs


def gpus_of(kept: KeptBasis) -> list[str]:
    regions = kept.scenario.regions
    return list(
        dict.fromkeys(name for region in regions for name in (*region.capacity, *region.spot))
    )


def changes_of(kept: KeptBasis, params: Mapping[str, str]) -> Changes:
    """Return the values that differ from the run's own; raise PlannerError for a bad number."""
    moved: dict[str, float] = {}
    for knob in knobs_of(kept):
        value = _number(knob.label, params.get(knob.name, ""))
        if value is not None and abs(value - knob.value) > ALIKE * max(1.0, abs(knob.value)):
            moved[knob.name] = value
    tiers: dict[str, dict[str, float]] = {}
    for name, value in moved.items():
        limit, _, tier = name.partition(".")
        if limit in WORDS:
            tiers.setdefault(tier, {})[limit] = value
    return Changes(
        growth=moved.get("growth", 1.0),
        quantile=moved.get("quantile"),
        spare=int(moved["spare"]) if "spare" in moved else None,
        prices={n.partition(".")[2]: v for n, v in moved.items() if n.startswith("price.")},
        tiers=tiers,
        mix={n.partition(".")[2]: v / 100 for n, v in moved.items() if n.startswith("mix.")},
    )


def _number(label: str, text: str) -> float | None:
    if not text.strip():
        return None
    try:
        value = float(text)
    except ValueError:
        raise PlannerError(f"{label}: {text[:40]!r} is no number.") from None
    if not abs(value) < 1e9:
        raise PlannerError(f"{label}: {text[:40]!r} is out of bounds.")
    return value


def form_context(run: Run, params: Mapping[str, str]) -> dict[str, Any]:
    """Return the context of the form, with sliders at the values in ``params``.

    A shared link therefore shows the values that it was sent with. A replay started from the page
    uses the same values.
    """
    knobs = [
        knob if (value := _number(knob.label, params.get(knob.name, ""))) is None
        else replace(knob, value=value)
        for knob in knobs_of(kept_of(run))
    ]  # fmt: skip
    return {"run": run, "knobs": knobs}


def answer_context(run: Run, params: Mapping[str, str]) -> dict[str, Any]:
    kept = kept_of(run)
    changes = changes_of(kept, params)
    before = _as_it_was(run.pk, run.store, run.finished_at)
    now = before if changes == Changes() else run_what_if(run, changes)
    return {
        "run": run,
        "moved": changes != Changes(),
        "sent": [(knob.name, params[knob.name]) for knob in knobs_of(kept) if knob.name in params],
        "now": now,
        "what": "The flat fleet" if now.flat else "The plan",
        "other": other_plan(run, before),
        "now_words": now_words(before, now),
        "rows": rows_of(before, now),
        "sizes": [
            (
                f"{size.model} on {size.replica}",
                size,
                signed_percent(size.input_tps / size.before_tps - 1),
            )
            for size in now.sizes
            if size.input_tps != size.before_tps and size.before_tps
        ],
        "periods": list(zip(before.periods, now.periods, strict=False)),
        "clock": (run.result.get("window") or {}).get("clock", "utc"),
    }


@lru_cache(maxsize=32)
def _as_it_was(pk: int, store: str, finished_at: datetime | None) -> WhatIf:
    """Return a run's plan unchanged, by the same program.

    ``store`` and ``finished_at`` tell it from a run that was restored under the same number.
    """
    run = Run.objects.get(pk=pk, store=store, finished_at=finished_at)
    return run_what_if(run, Changes())


def other_plan(run: Run, before: WhatIf) -> str:
    """Return a sentence if the plan on the run's page differs from the scenario's own."""
    if before.flat:
        return _replayed(run, before)
    shown_usd = ((run.result.get("plan") or {}).get("totals") or {}).get("usd")
    if before.totals is None or shown_usd is None:
        return ""
    if abs(before.totals.usd - shown_usd) <= OTHER * shown_usd:
        return ""
    return (
        f"The policy that this run's page follows made another plan, of {figure(shown_usd, '$')}; "
        "here stands the scenario's own, of its forecast at its quantile."
    )


def _replayed(run: Run, before: WhatIf) -> str:
    """Return a sentence if the static fleet had another cost in the simulation."""
    cost = (run.result.get("recommended") or {}).get("cost_usd")
    if before.totals is None or not cost or abs(before.totals.usd - cost) <= OTHER * cost:
        return ""
    return (
        f"Replayed in the run this fleet cost {figure(cost, '$')}, with its starts and until the "
        "last request was done; here it is held for as long as the window."
    )


def now_words(before: WhatIf, now: WhatIf) -> str:
    """Summarize the plan with the changed settings in one line."""
    if now.totals is None:
        return f"No {'such fleet' if now.flat else 'plan'} with these settings."
    words = f"{figure(now.totals.usd, '$')}, {_range(now)} replica{'s' * (now.most != 1)}"
    if before.totals is None or now is before or not before.totals.usd:
        return f"As it was: {words}"
    return f"{words}: {signed_percent(now.totals.usd / before.totals.usd - 1)} of its cost"


def rows_of(before: WhatIf, now: WhatIf) -> list[Row]:
    rows = []
    for name, label, unit in TAKEN:
        was, is_ = (None if plan.totals is None else getattr(plan.totals, name)
                    for plan in (before, now))  # fmt: skip
        change = "" if not was or is_ is None or is_ == was else signed_percent(is_ / was - 1)
        rows.append(Row(label, _shown(was, unit), _shown(is_, unit), change))
    rows.append(Row("Replicas at a time", _range(before), _range(now), ""))
    rows += [
        Row(f"{name}, GPUs at most", _most(before, name), _most(now, name), "")
        for name in dict.fromkeys(most.gpu for most in before.gpus)
    ]
    return rows


def _most(plan: WhatIf, gpu: str) -> str:
    """Return the sum over regions of each region's largest GPU count."""
    if plan.totals is None:
        return NOTHING
    return figure(sum(row.most for row in plan.gpus if row.gpu == gpu))


def _shown(value: float | None, unit: str) -> str:
    return NOTHING if value is None else shown(value, unit)


def _range(plan: WhatIf) -> str:
    if plan.totals is None:
        return NOTHING
    return figure(plan.most) if plan.least == plan.most else f"{plan.least:,} to {plan.most:,}"
