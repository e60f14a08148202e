"""Plan a run again with something changed: answer in place, or replay as a run of a draft."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from pydantic import ValidationError

from planner.domain.kinds.plan import (
    Options,
    with_objective,
)
from planner.domain.options import options_of
from planner.domain.whatif.answer import (
    Moved,
    WhatIf,
    what_if,
)
from planner.domain.whatif.plan_inputs import (
    Basis,
    from_arrays,
)
from planner.errors import KeyReused, NotReady, PlannerError
from planner.inputs.scenario import document as text
from planner.inputs.scenario.address import with_values
from planner.inputs.scenario.build import build_hardware
from planner.inputs.scenario.schema import Scenario as Parsed
from planner.models import Run, Scenario, User
from planner.selectors.run_hardware import known_of
from planner.selectors.runs import run_result
from planner.services.access import check_may_plan
from planner.services.execution import BASIS
from planner.services.runs import run_with_key
from planner.services.scenarios import scenario_create, scenario_run
from planner.services.whatif_mix import Caps, held, words
from planner.services.whatif_mix import addresses as capacities_of
from planner.storage import row_arrays

GROWTH = 0.05, 20.0  # least and largest factor of demand
PRICE = 0.05, 20.0  # least and largest factor of a price
LIMITS = ("ttft_ms", "tbt_ms", "percentile")  # limits of a tier


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes of a stored plan; a missing value stays as it was.

    ``prices``: factors by GPU type. ``tiers``: limits by tier. ``without``: GPU types that may not
    be used. ``mix``: largest share of a region's GPUs at its peak, by GPU type.
    """

    growth: float = 1.0
    quantile: float | None = None
    spare: int | None = None
    prices: Mapping[str, float] = field(default_factory=dict)
    tiers: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    mix: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class KeptBasis:
    """The plan of a run to change: its scenario and what the plan was made from."""

    scenario: Parsed
    basis: Basis


def kept_of(run: Run) -> KeptBasis:
    """Return the plan of a run to change; raise NotReady with the reason if it has none."""
    run_result(run)
    if run.kind not in (Run.Kind.PLAN, Run.Kind.COMPARE):
        raise NotReady("Only plans and comparisons have a plan to change; plan this scenario.")
    basis = from_arrays(row_arrays.arrays_read(run.store, BASIS))
    if basis is None:
        raise NotReady(
            f"Run {run.pk} was made before plans kept what they were made from; run it again."
        )
    scenario = _parsed(run.document)
    if run.kind == Run.Kind.PLAN:
        scenario = with_objective(scenario, options_of(Options, run.options))
    return KeptBasis(scenario, basis)


def run_what_if(run: Run, changes: Changes) -> WhatIf:
    """Return the plan with ``changes``, without a simulation; raise PlannerError if not valid."""
    base = kept_of(run)
    answer, caps = _planned(base, run, changes)
    return replace(answer, notes=(*words(changes.mix, answer, caps), *answer.notes))


def _planned(base: KeptBasis, run: Run, changes: Changes) -> tuple[WhatIf, Caps]:
    """Return the plan, and the capacities that keep its mix."""
    known = known_of(run.resolved)
    moved = Moved(changes.growth, changes.quantile)
    values = addresses(base.scenario, run, changes, demand=False)

    def answered(capacities: dict[str, Any]) -> WhatIf:
        changed = parsed_with(base.scenario, values | capacities)
        return what_if(base.basis, changed, base.scenario, known, moved)

    return held(base.scenario, changes.mix, answered)


@lru_cache(maxsize=32)
def _parsed(document: str) -> Parsed:
    """Parse a document once for all questions that a user asks about a run."""
    return text.parse(document)


def parsed_with(scenario: Parsed, changes: Mapping[str, Any]) -> Parsed:
    """Return ``scenario`` with values at addresses changed, and check it."""
    if not changes:
        return scenario
    try:
        return Parsed.model_validate(with_values(scenario, changes))
    except ValidationError:  # parse the text for a readable message
        return text.parse(text.edit(text.dump(scenario), changes), "what if")


def addresses(scenario: Parsed, run: Run, changes: Changes, *, demand: bool) -> dict[str, Any]:
    """Return ``changes`` as values of the scenario.

    ``demand``: include growth and quantile, which an answer in place takes from the stored plan.
    """
    _check(scenario, changes)
    values: dict[str, Any] = {}
    if changes.spare is not None:
        values["objective.spare.instances"] = changes.spare
    for name, limits in changes.tiers.items():
        values |= {f"tiers[{name}].{limit}": value for limit, value in limits.items()}
    values |= _prices(scenario, run, changes.prices)
    for name in changes.without:
        for region in scenario.regions:
            if name in region.capacity:
                values[f"regions[{region.name}].capacity[{name}]"] = 0
            if name in region.spot:
                values[f"regions[{region.name}].spot[{name}].capacity"] = 0
    if demand and changes.growth != 1.0:
        for place, source in enumerate(scenario.traffic.sources):
            values[f"traffic.sources[{place}].scale"] = source.scale * changes.growth
    if demand and changes.quantile is not None:
        values |= {"forecast.quantile": changes.quantile, "forecast.quantiles": None}
    return values


def _prices(scenario: Parsed, run: Run, prices: Mapping[str, float]) -> dict[str, Any]:
    """Return the prices in every region, multiplied by the factor of their GPU type."""
    moved = {name: times for name, times in prices.items() if times != 1.0}
    if not moved:
        return {}
    hardware = build_hardware(scenario, known_of(run.resolved), spot=True)
    values: dict[str, Any] = {}
    for r, region in enumerate(scenario.regions):
        for g, gpu in enumerate(hardware.gpus):
            if gpu.name in moved:
                usd = float(hardware.usd_per_gpu_hour[r, g]) * moved[gpu.name]
                if hardware.columns[g].spot and gpu.name in region.spot:
                    values[f"regions[{region.name}].spot[{gpu.name}].usd_per_gpu_hour"] = usd
                elif not hardware.columns[g].spot and gpu.name in region.capacity:
                    values[f"regions[{region.name}].usd_per_gpu_hour[{gpu.name}]"] = usd
    return values


def _check(scenario: Parsed, changes: Changes) -> None:
    """Raise PlannerError for unknown names and for values outside their limits."""
    _within("growth", changes.growth, *GROWTH)
    if changes.quantile is not None:
        _within("quantile", changes.quantile, 0.05, 0.95)
    gpus = {name for region in scenario.regions for name in (*region.capacity, *region.spot)}
    for name in (*changes.prices, *changes.without, *changes.mix):
        if name not in gpus:
            raise PlannerError(f"There is no GPU type {name!r}; there are {', '.join(gpus)}.")
    for name, times in changes.prices.items():
        _within(f"prices of {name}", times, *PRICE)
    for name, share in changes.mix.items():
        _within(f"mix of {name}", share, 0.0, 1.0)
    tiers = {tier.name: tier for tier in scenario.tiers if not tier.deferrable}
    for name, limits in changes.tiers.items():
        if name not in tiers:
            raise PlannerError(
                f"There is no interactive tier {name!r}; there are {', '.join(tiers)}."
            )
        for limit in limits:
            if limit not in LIMITS:
                raise PlannerError(f"tiers: {limit!r} is none of {', '.join(LIMITS)}.")


def _within(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise PlannerError(f"{name}: {value:g} is not within {least:g} to {most:g}.")


def what_if_replay(*, run: Run, user: User, changes: Changes, idempotency_key: str = "") -> Run:
    """Start a run of the same kind on a new scenario with these settings.

    The first run and its scenario stay. The same ``idempotency_key`` returns the first replay.
    Raises KeyReused for another request.
    """
    check_may_plan(user)
    base = kept_of(run)
    changed = addresses(base.scenario, run, changes, demand=True)
    if changes.mix:
        changed |= capacities_of(_planned(base, run, changes)[1])
    if not changed:
        raise PlannerError("Nothing is changed: move something first, or run it again.")
    return run_on_draft(
        run=run, user=user, kind=run.kind, name=_free_name(base.scenario.name), changes=changed,
        options={key: value for key, value in run.options.items() if key != "seed"},
        idempotency_key=idempotency_key,
    )  # fmt: skip


def run_on_draft(
    *,
    run: Run,
    user: User,
    kind: str,
    name: str,
    changes: Mapping[str, Any],
    options: Mapping[str, Any],
    idempotency_key: str = "",
) -> Run:
    """Start a run of ``kind`` on a new scenario.

    It is the scenario of ``run`` with values at addresses changed.
    """
    if (first := run_with_key(user, idempotency_key)) is not None:
        if first.document != text.edit(run.document, {**changes, "name": first.name}):
            raise KeyReused(
                f"The idempotency key {idempotency_key!r} belongs to run {first.pk}, which was "
                "asked for with other values; send a new key for a new request."
            )
        return first
    draft = scenario_create(owner=user, document=text.edit(run.document, {**changes, "name": name}))
    return scenario_run(
        scenario=draft, owner=user, kind=kind, options=dict(options),
        idempotency_key=idempotency_key,
    )  # fmt: skip


def _free_name(name: str) -> str:
    names = set(Scenario.objects.values_list("name", flat=True))
    base = name[:105]
    return next(n for i in range(1, len(names) + 2) if (n := f"{base}, what if {i}") not in names)
