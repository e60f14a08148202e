"""Where a fleet's instances go in the network, by every method, and what that does to requests."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal, get_args

import numpy as np
from pydantic import Field

from planner.errors import ScenarioError
from planner.optimizer.placement import (
    Measures,
    Placement,
    PlacementProblem,
    Service,
    measure,
    place_blind,
    place_exact,
    schedule,
)
from planner.optimizer.placement.problem import joined
from planner.optimizer.placement.scale_in import have
from planner.scenario.build import Hardware, build_hardware
from planner.scenario.known import NOTHING, Known
from planner.scenario.schema import Scenario
from planner.scenario.schema.planning import TimeLimit
from planner.scenario.topology import kv_shares, topology_of
from planner.studies.options import RunOptions
from planner.studies.outcome import Outcome, Traces
from planner.studies.placement import documents as doc
from planner.studies.placement.services import Placed, apart, as_today, placed_services
from planner.studies.placement.simulation import Load, busiest, placed_fleet, replayed
from planner.studies.planning.planning import plan_window
from planner.studies.progress import Progress, part
from planner.studies.sizing.sizing import size
from planner.studies.traffic.traffic import Traffic, build_traffic
from planner.studies.traffic.window import Window, resolve_window, words_of
from simulation.arrays import IntArray
from simulation.performance.specs import Provenance

Method = Literal["blind", "algorithm4", "exact"]
METHODS: tuple[str, ...] = get_args(Method)
Counts = Literal["today", "peak", "last"]  # what runs today; the plan's largest period; its last
Instances = Annotated[int, Field(ge=1, le=10_000)]
MOST_GPUS = 100_000  # of a scenario's regions


class Options(RunOptions):
    method: Literal[Method, "all"] = Field("all", title="Method", description="Left out: all.")
    counts: Counts | None = Field(
        None,
        title="What to place",
        description="Today's fleet, the plan's largest or last period; left out: today's where the "
        "scenario has it, else the largest.",
    )
    ratio: tuple[Instances, Instances] | None = Field(
        None,
        title="Ratio",
        description="Prefill and decode instances: mixed pools are placed apart in this ratio.",
        json_schema_extra={"give": "P:D, such as 1:2, both at least 1"},
    )
    grow: float = Field(
        0.5,
        title="Grow by",
        ge=0,
        le=100,
        description="Then scale out by this share and in again; left out: 0.5, 0: do not.",
    )
    time_limit_s: TimeLimit = Field(
        10.0, title="Time limit", description="Seconds of the exact method; left out: 10."
    )


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """A placement by one method at one moment: the start, grown, and shrunk again."""

    problem: PlacementProblem  # what was wanted then
    placement: Placement
    measures: Measures
    seconds: float
    gap: float | None = None  # of the exact method
    bound: float | None = None


def run(
    scenario: Scenario,
    traces: Traces,
    options: Options,
    *,
    known: Known = NOTHING,
    progress: Progress,
) -> Outcome:
    """Place the instances of today's fleet or of the plan, then more of each, then take them in
    again, with one method or all.

    What prefill and decode apart lose in KV bandwidth is replayed on the busiest hour. Raises
    ScenarioError, Infeasible where there is no plan.
    """
    ratio = options.ratio
    begun = time.perf_counter()
    hardware = build_hardware(scenario, known)
    if hardware.capacity_gpus.sum() > MOST_GPUS:
        raise ScenarioError(
            f"regions: {hardware.capacity_gpus.sum():,} GPUs are more than the {MOST_GPUS:,} that "
            "are placed at once; place a part of the regions."
        )
    progress(0.0, "Reading the traffic")
    traffic = build_traffic(scenario, traces)
    window = resolve_window(scenario, traffic.demand, traffic.clock)
    have_now, source = _counts(
        scenario, hardware, traffic, window, options.counts, part(progress, 0.0, 0.5)
    )
    if ratio is not None:
        scenario = apart(scenario, ratio, as_today(hardware, have_now))
        hardware = build_hardware(scenario, known)
        assert hardware.today is not None
        have_now = hardware.today
        source += f", mixed pools as {ratio[0]} prefill to {ratio[1]} decode"
    facts: list[tuple[str, Provenance]] = []
    topology = topology_of(scenario, hardware, facts)
    shares = kv_shares(scenario, facts)
    placed = placed_services(scenario, hardware, have_now)
    problem = PlacementProblem(topology, tuple(one.service for one in placed))
    methods = METHODS if options.method == "all" else (options.method,)
    states: dict[str, dict[str, State]] = {}
    for i, name in enumerate(methods):
        here = part(progress, 0.5 + 0.3 * i / len(methods), 0.5 + 0.3 * (i + 1) / len(methods))
        here(0.0, f"Placing: {doc.LABELS[name]}")
        solve = partial(
            _solve,
            name,
            seed=scenario.seed,
            shares=shares,
            limit_s=options.time_limit_s,
            alive=partial(here, 0.5, f"Placing: {doc.LABELS[name]}"),
        )
        states[name] = _states(problem, solve, shares, options.grow)
    load = busiest(traffic, window, scenario.seed)
    simulated = _simulated(hardware, placed, states, load, scenario.seed, part(progress, 0.8, 1.0))
    document = doc.placement_document(
        scenario, hardware, problem, placed, states, simulated, source, facts
    )
    if load is not None:
        document["simulation"] |= {
            "start": words_of(load.start_s, traffic.clock),
            "duration_s": load.duration_s,
            "requests": len(load.trace),
        }
    document["notes"] += list(traffic.notes)
    document["seconds"] = time.perf_counter() - begun
    return Outcome(document, doc.placement_tables(problem, states))


def _counts(
    scenario: Scenario,
    hardware: Hardware,
    traffic: Traffic,
    window: Window,
    wanted: str | None,
    progress: Progress,
) -> tuple[IntArray, str]:
    """Instances ``[l, r, g]`` to place and where they come from."""
    if wanted is None:
        wanted = "peak" if hardware.today is None else "today"
    if wanted == "today":
        if hardware.today is None:
            raise ScenarioError(
                "fleet.today: the scenario does not say what runs today; give it, or place the "
                "plan's peak."
            )
        return hardware.today, "fleet.today"
    sizes = size(hardware, traffic, scenario.seed, part(progress, 0.0, 0.6))
    current = np.zeros(hardware.minimum.shape, np.int64)
    planned = plan_window(
        scenario,
        hardware,
        traffic,
        window,
        sizes,
        current=current if hardware.today is None else hardware.today,
        progress=part(progress, 0.6, 1.0),
    )
    target = planned.plan.target
    gpus = np.zeros(current.shape, np.int64)
    for (m, g), profile in hardware.profiles.items():
        gpus[m, :, g] = profile.tp
    totals = (target * gpus).sum(axis=(1, 2, 3))
    p = int(totals.argmax()) if wanted == "peak" else len(target) - 1
    when = words_of(float(planned.plan.period_start_s[p]), traffic.clock)
    what = "largest" if wanted == "peak" else "last"
    return target[p], f"the plan's {what} period, from {when}"


def _solve(
    name: str,
    problem: PlacementProblem,
    current: Placement | None,
    *,
    seed: int,
    shares: Sequence[float],
    limit_s: float,
    alive: partial[None],
) -> tuple[Placement, float | None, float | None]:
    """``problem`` from ``current`` on by one method: placement, gap and bound. What is less than
    there is goes by Algorithm 4's scale-in, which each method uses."""
    if name == "algorithm4":
        return schedule(problem, current)[0], None, None
    before = Placement.of([]) if current is None else current
    targets = problem.services
    present = [have(before, s, len(one.roles)) for s, one in enumerate(targets)]
    if any(
        h > w
        for one, n in zip(targets, present, strict=True)
        for h, w in zip(n, one.wanted, strict=True)
    ):
        return schedule(problem, before)[0], None, None
    more = tuple(
        replace(one, wanted=tuple(w - h for w, h in zip(one.wanted, n, strict=True)))
        for one, n in zip(targets, present, strict=True)
    )
    taken = problem.taken + before.used(len(problem.topology))
    delta = PlacementProblem(problem.topology, more, taken)
    if name == "blind":
        return _joined(before, place_blind(delta, seed)), None, None
    exact = place_exact(delta, shares=shares, time_limit_s=limit_s, check=alive)
    return _joined(before, exact.placement), exact.gap, exact.bound


def _joined(before: Placement, new: Placement) -> Placement:
    """Units and instances of ``new`` numbered after those of ``before``."""
    first = np.zeros(int(max(before.service.max(initial=-1), new.service.max(initial=-1))) + 1, int)
    np.maximum.at(first, before.service, before.unit + 1)
    table = [getattr(new, name) for name in new.COLUMNS]
    at = new.COLUMNS.index
    table[at("unit")] = table[at("unit")] + first[new.service]
    start = int(before.instance.max(initial=-1)) + 1
    table[at("instance")] = table[at("instance")] + start
    return joined(before, Placement.of_table(table, new.unplaced))


def _states(
    problem: PlacementProblem,
    solve: partial[tuple[Placement, float | None, float | None]],
    shares: Sequence[float],
    grow: float,
) -> dict[str, State]:
    """The start, and where ``grow`` is above 0 the fleet grown and shrunk again."""
    more = tuple(_grown(one, grow) for one in problem.services)
    steps = {"start": problem}
    if grow > 0:
        steps["grown"] = PlacementProblem(problem.topology, more, problem.taken)
        steps["shrunk"] = problem
    found: dict[str, State] = {}
    current: Placement | None = None
    for name, wanted in steps.items():
        began = time.perf_counter()
        current, gap, bound = solve(wanted, current)
        seconds = time.perf_counter() - began
        measures = measure(wanted, current, shares=shares)
        found[name] = State(wanted, current, measures, seconds, gap, bound)
    return found


def _grown(service: Service, grow: float) -> Service:
    return replace(service, wanted=tuple(math.ceil(n * (1 + grow)) for n in service.wanted))


def _simulated(
    hardware: Hardware,
    placed: Sequence[Placed],
    states: dict[str, dict[str, State]],
    load: Load | None,
    seed: int,
    progress: Progress,
) -> dict[str, dict[str, Any]]:
    """Each method's start replayed, with the mean share and with the worst unit's; nothing where no
    service hands KV caches over."""
    if load is None or not any(len(one.columns) > 1 for one in placed):
        return {}
    found: dict[str, dict[str, Any]] = {}
    for i, (name, by_state) in enumerate(states.items()):
        progress(i / len(states), f"Replaying: {doc.LABELS[name]}")
        state = by_state["start"]
        fleet, counts = placed_fleet(hardware, placed, state.placement, state.measures)
        found[name] = replayed(fleet, counts, load, seed)
        slow, counts = placed_fleet(hardware, placed, state.placement, state.measures, worst=True)
        found[name]["worst_unit"] = (
            replayed(slow, counts, load, seed) if slow.pools != fleet.pools else None
        )
    return found
