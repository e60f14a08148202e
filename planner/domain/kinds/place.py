"""Place a fleet's instances in the network by several methods, and simulate the effect."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Literal

import numpy as np
import polars as pl
from pydantic import Field

from planner.domain.options import RunOptions
from planner.domain.outcome import Outcome, Traces
from planner.domain.placement import figures
from planner.domain.placement.methods import LABELS, METHODS, START, Method, Placer, State, States
from planner.domain.placement.services import (
    current_fleet_words,
    disaggregated_scenario,
    placed_services,
)
from planner.domain.placement.simulation import busiest_load, replay_state
from planner.domain.planning.inputs import PlanInput
from planner.domain.planning.planning import plan_window
from planner.domain.progress import Progress, part
from planner.domain.serialise import OPTIONAL
from planner.domain.sizing.sizing import size_over_time
from planner.domain.sources import Fact, facts_of
from planner.domain.traffic.known_lengths import known_lengths, traffic_with_known_lengths
from planner.domain.traffic.traffic import Traffic, build_traffic
from planner.domain.traffic.window import UNGROWN, Window, resolve_window, words_of
from planner.errors import ScenarioError
from planner.inputs.scenario.build import Hardware, build_hardware
from planner.inputs.scenario.schema import Scenario
from planner.inputs.scenario.schema.planning import TimeLimit
from planner.inputs.scenario.settings import settings_of
from planner.inputs.scenario.topology import kv_shares, topology_of
from planner.inputs.scenario.user_facts import NO_USER_FACTS, UserFacts
from planner.optimizer.placement import PlacementProblem
from planner.optimizer.placement.problem import HIGH, TIERS
from simulation.arrays import IntArray
from simulation.performance.specs import Provenance
from simulation.topology import LEVELS

Counts = Literal["today", "peak", "last"]  # today's fleet; the plan's largest period; its last
Instances = Annotated[int, Field(ge=1, le=10_000)]
MOST_GPUS = 100_000  # most GPUs of all regions


class Options(RunOptions):
    method: Literal[Method, "all"] = Field(
        "all", title="Method", description="Placement method. Default: all."
    )
    counts: Counts | None = Field(
        None,
        title="What to place",
        description="Today's fleet, or the plan's largest or last period. Default: today's, else "
        "the largest.",
    )
    ratio: tuple[Instances, Instances] | None = Field(
        None,
        title="Ratio",
        description="Ratio of prefill to decode, to split aggregated pools.",
        json_schema_extra={"give": "P:D, such as 1:2, both at least 1"},
    )
    grow: float = Field(
        0.5,
        title="Grow by",
        ge=0,
        le=100,
        description="Share of a scale-out and the scale-in after it. Default: 0.5.",
    )
    time_limit_s: TimeLimit = Field(
        10.0, title="Time limit", description="Seconds of the exact method. Default: 10."
    )


@dataclass(frozen=True, slots=True)
class Simulated:
    """The simulated interval in a result; only ``words`` is set if it has no requests."""

    words: str
    start: str | None = field(default=None, metadata={OPTIONAL: True})
    duration_s: float | None = field(default=None, metadata={OPTIONAL: True})
    requests: int | None = field(default=None, metadata={OPTIONAL: True})


@dataclass(frozen=True, slots=True)
class PlaceResult:
    """The result of ``place``, as ``bin/manage place --json`` prints it."""

    kind: str
    scenario: str
    counts_from: str
    headline: str
    methods: dict[str, figures.MethodFigures]
    services: tuple[figures.ServiceFigures, ...]
    topology: tuple[figures.RegionTree, ...]
    simulation: Simulated
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    provenance: tuple[Fact, ...]
    seconds: float


def run(
    scenario: Scenario,
    traces: Traces,
    options: Options,
    *,
    known: UserFacts = NO_USER_FACTS,
    progress: Progress,
) -> Outcome:
    """Place a fleet with one method or all, then scale it out, then scale it in again.

    The fleet is today's or the plan's. The loss of KV bandwidth between prefill and decode
    instances is simulated on the busiest hour. Raises ScenarioError, or Infeasible if there is no
    plan.
    """
    begun = time.perf_counter()
    hardware = build_hardware(scenario, known)
    if hardware.capacity_gpus.sum() > MOST_GPUS:
        raise ScenarioError(
            f"regions: {hardware.capacity_gpus.sum():,} GPUs are more than the {MOST_GPUS:,} that "
            "one run can place. Place fewer regions."
        )
    progress(0.0, "Reading the traffic")
    traffic = build_traffic(settings_of(scenario).traffic, traces)
    window = resolve_window(settings_of(scenario).window, traffic.demand, traffic.clock)
    instances, source = _counts_to_place(
        scenario, hardware, traffic, window, options.counts, part(progress, 0.0, 0.5)
    )
    if options.ratio is not None:
        prefill, decode = options.ratio
        scenario = disaggregated_scenario(
            scenario, options.ratio, current_fleet_words(hardware, instances)
        )
        hardware = build_hardware(scenario, known)
        assert hardware.today is not None
        instances = hardware.today
        source += f", mixed pools as {prefill} prefill to {decode} decode"
    facts: list[tuple[str, Provenance]] = []
    topology = topology_of(scenario, hardware, facts)
    shares = kv_shares(scenario, facts)
    facts += [fact for fact in hardware.provenance if fact[0].startswith("KV transfer")]
    placed = placed_services(scenario, hardware, instances)
    any_kv_transfer = any(service.hands_over for service in placed)
    problem = PlacementProblem(topology, tuple(service.service for service in placed))
    by_method = _placements(problem, options, scenario.seed, shares, part(progress, 0.5, 0.8))
    load = busiest_load(traffic, window, scenario.seed)
    methods = {}
    for i, (name, states) in enumerate(by_method.items()):
        replay = None
        # Only KV transfers between prefill and decode instances depend on the placement.
        if load is not None and any_kv_transfer:
            progress(0.8 + 0.2 * i / len(by_method), f"Replaying: {LABELS[name]}")
            replay = replay_state(hardware, placed, states[START], load, scenario.seed)
        methods[name] = figures.method_figures(name, states, placed, replay)
    words = figures.simulated_words(methods)
    simulation = Simulated(words)
    if load is not None:
        start = words_of(load.start_s, traffic.clock)
        simulation = Simulated(words, start, load.duration_s, len(load.trace))
    result = PlaceResult(
        kind="place",
        scenario=scenario.name,
        counts_from=source,
        headline=figures.headline(methods, any_kv_transfer),
        methods=methods,
        services=tuple(figures.service_figures(hardware, service) for service in placed),
        topology=tuple(figures.region_trees(problem)),
        simulation=simulation,
        warnings=tuple(figures.warnings(methods, any_kv_transfer)),
        notes=(
            *figures.notes(source, methods, any_kv_transfer),
            *([UNGROWN] if window.ahead and window.growth and load is not None else []),
            *traffic.notes,
        ),
        provenance=facts_of(facts),
        seconds=time.perf_counter() - begun,
    )
    return Outcome(result, tables_of(problem, by_method))


def _placements(
    problem: PlacementProblem,
    options: Options,
    seed: int,
    shares: tuple[float, ...],
    progress: Progress,
) -> dict[str, States]:
    """Return the states by method: placed, scaled out by ``options.grow``, scaled in again.

    ``shares`` are the shares of link bandwidth that KV caches get, by lowest common level.
    """
    names = METHODS if options.method == "all" else (options.method,)
    states: dict[str, States] = {}
    for i, name in enumerate(names):
        method_progress = part(progress, i / len(names), (i + 1) / len(names))
        method_progress(0.0, f"Placing: {LABELS[name]}")
        # The placer calls this now and then: it reports progress and may cancel the run.
        keep_alive = partial(method_progress, 0.5, f"Placing: {LABELS[name]}")
        placer = Placer(name, seed, shares, options.time_limit_s, keep_alive)
        states[name] = placer.states(problem, options.grow)
    return states


def _counts_to_place(
    scenario: Scenario,
    hardware: Hardware,
    traffic: Traffic,
    window: Window,
    period_or_today: str | None,
    progress: Progress,
) -> tuple[IntArray, str]:
    """Return the replicas to place, ``[l, r, g]``, and a phrase on where the counts come from.

    ``period_or_today`` is "today" for today's fleet, "peak" or "last" for a period of the plan.
    None: today's fleet if it is known, else the largest period.
    """
    if period_or_today is None:
        period_or_today = "peak" if hardware.today is None else "today"
    if period_or_today == "today":
        if hardware.today is None:
            raise ScenarioError(
                "fleet.today: the scenario has no current fleet. Add it, or place the plan's peak."
            )
        return hardware.today, "fleet.today"
    lengths = known_lengths(traffic, window, scenario.seed)
    traffic = traffic_with_known_lengths(traffic, lengths)
    sizes = size_over_time(hardware, lengths, scenario.seed, part(progress, 0.0, 0.6))
    no_replicas = np.zeros(hardware.minimum.shape, np.int64)
    current = no_replicas if hardware.today is None else hardware.today
    inputs = PlanInput(settings_of(scenario).plan, hardware, traffic, window, sizes, current)
    planned = plan_window(inputs, part(progress, 0.6, 1.0))
    target = planned.plan.target
    gpus_per_period = np.einsum("plrg,lg->p", target, planned.plan.gpus_per_instance)
    p = int(gpus_per_period.argmax()) if period_or_today == "peak" else len(target) - 1
    when = words_of(float(planned.plan.period_start_s[p]), traffic.clock)
    what = "largest" if period_or_today == "peak" else "last"
    return target[p], f"the plan's {what} period, from {when}"


def tables_of(
    problem: PlacementProblem, by_method: Mapping[str, States]
) -> dict[str, pl.DataFrame]:
    """Return the tables of a placement run by name.

    ``nodes`` has one row per node of the network. ``instances`` has one row per method, state,
    instance and node. ``units`` has one row per method, state and unit.
    """
    tree = problem.topology
    nodes = pl.DataFrame(
        {
            "node": np.arange(len(tree)),
            "region": [tree.centres[c] for c in tree.centre],
            "s2": tree.s2,
            "s1": tree.s1,
            "rack": tree.rack,
            "priority": [TIERS[t] for t in problem.tiers[tree.s1]],
            "gpu": [tree.gpu_types[t] for t in tree.gpu],
            "gpus": tree.gpus,
        }
    )
    states = [
        (method, step, state)
        for method, states in by_method.items()
        for step, state in states.items()
    ]
    return {
        "nodes": nodes,
        "instances": pl.concat(
            _with_method_and_state(method, step, _instances(state))
            for method, step, state in states
        ),
        "units": pl.concat(
            _with_method_and_state(method, step, _units(state)) for method, step, state in states
        ),
    }


def _with_method_and_state(method: str, step: str, table: pl.DataFrame) -> pl.DataFrame:
    """Return the table with the columns ``method`` and ``state`` in front."""
    labels = pl.lit(method).alias("method"), pl.lit(step).alias("state")
    return table.select(*labels, pl.all())


def _instances(state: State) -> pl.DataFrame:
    """Return the table of placed instances in one state."""
    placement, services = state.placement, state.problem.services
    roles = [services[s].roles[r] for s, r in zip(placement.service, placement.role, strict=True)]
    parts = [role.parts[p].name for role, p in zip(roles, placement.part, strict=True)]
    return pl.DataFrame(
        {
            "service": _names(state, placement.service),
            "unit": placement.unit,
            "role": pl.Series([role.name for role in roles], dtype=pl.String),
            "part": pl.Series(parts, dtype=pl.String),
            "instance": placement.instance,
            "node": placement.node,
            "gpus": placement.gpus,
        }
    )


def _units(state: State) -> pl.DataFrame:
    """Return the table of placed units in one state."""
    units = state.measures.units
    return pl.DataFrame(
        {
            "service": _names(state, units.service),
            "unit": units.unit,
            "gpus": units.gpus,
            "within": pl.Series([LEVELS[level] for level in units.level], dtype=pl.String),
            "affinity_honoured": units.honoured,
            "split": units.split,
            "bandwidth_share": units.share,
            "fallback_gpus": units.fallback_gpus,
            "on_high_priority": units.tier == HIGH,
        }
    )


def _names(state: State, services: IntArray) -> pl.Series:
    """Return the names of ``services`` (indices)."""
    return pl.Series([state.problem.services[s].name for s in services], dtype=pl.String)
