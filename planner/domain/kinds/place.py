"""Place a fleet's replicas in the network by several methods, and simulate the effect.

A service is a model in a region. A unit is the smallest set of its prefill and decode replicas in
their ratio. A state is a placement at the start, after the scale-out, or after the scale-in.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Literal, Self

import numpy as np
import polars as pl
from pydantic import Field

from planner.domain.options import RunOptions
from planner.domain.outcome import Inputs, Outcome
from planner.domain.placement import figures
from planner.domain.placement.methods import LABELS, METHODS, START, Method, Placer, State, States
from planner.domain.placement.services import (
    current_fleet_rows,
    disaggregated_scenario,
    placed_services,
)
from planner.domain.placement.simulation import ReplayLoad, busiest_load, replay_state
from planner.domain.planning.inputs import PlanInput
from planner.domain.planning.planning import plan_window
from planner.domain.progress import Progress, part
from planner.domain.serialise import OPTIONAL
from planner.domain.sizing.sizing import size_over_time
from planner.domain.sources import Fact, facts_of
from planner.domain.traffic.known_lengths import known_lengths, traffic_with_known_lengths
from planner.domain.traffic.traffic import Traffic, traffic_and_window
from planner.domain.traffic.window import Window, words_of
from planner.errors import ScenarioError
from planner.inputs.scenario.build import Hardware, build_hardware
from planner.inputs.scenario.schema import Scenario
from planner.inputs.scenario.schema.planning import TimeLimit
from planner.inputs.scenario.settings import settings_of
from planner.inputs.scenario.topology import kv_shares, topology_of
from planner.optimizer.placement import PlacementProblem
from planner.optimizer.placement.problem import HIGH, TIERS
from simulation.arrays import IntArray
from simulation.performance.specs import Provenance
from simulation.topology import LEVELS

Counts = Literal["today", "peak", "last"]  # today's fleet; the plan's largest period; its last
Instances = Annotated[int, Field(ge=1, le=10_000)]
MOST_GPUS = 100_000  # most GPUs of all regions


class Options(RunOptions):
    method: Literal[Method, "all"] = Field("all", title="Method")
    """Placement method. Default: all."""
    counts: Counts | None = Field(None, title="What to place")
    """The current fleet, or the plan's largest or last period. Default: current, else largest."""
    ratio: tuple[Instances, Instances] | None = Field(
        None, title="Ratio", json_schema_extra={"give": "P:D, such as 1:2, both at least 1"}
    )
    """Ratio of prefill to decode, to split aggregated pools."""
    grow: float = Field(0.5, title="Grow by", ge=0, le=100)
    """Share of a scale-out and the scale-in after it. Default: 0.5."""
    time_limit_s: TimeLimit = Field(10.0, title="Time limit")
    """Seconds of the exact method. Default: 10."""


@dataclass(frozen=True, slots=True)
class Simulated:
    """The simulated interval in a result; only ``words`` is set if it has no requests."""

    words: str
    start: str | None = field(default=None, metadata={OPTIONAL: True})
    duration_s: float | None = field(default=None, metadata={OPTIONAL: True})
    requests: int | None = field(default=None, metadata={OPTIONAL: True})

    @classmethod
    def of(cls, load: ReplayLoad | None, words: str, clock: str) -> Self:
        """Return the interval of ``load`` (None: no requests); ``clock`` is that of the traffic."""
        if load is None:
            return cls(words)
        return cls(words, words_of(load.start_s, clock), load.duration_s, len(load.trace))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceResult:
    """The result of ``place``, as ``bin/manage place --json`` prints it."""

    kind: str = "place"
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


def run(inputs: Inputs, options: Options, progress: Progress) -> Outcome:
    """Place today's or a planned fleet in the network, scale it out, and scale it in again.

    Requests of the busiest hour are simulated with the KV bandwidth that each placement leaves
    between prefill and decode replicas. Raises ScenarioError, or Infeasible if there is no plan.
    """
    begun = time.perf_counter()
    progress(0.0, "Reading the traffic")
    traffic, window = traffic_and_window(settings_of(inputs.scenario), inputs.traces)
    scenario, hardware, replicas, source = _fleet_to_place(
        inputs, traffic, window, options, part(progress, 0.0, 0.5)
    )
    facts: list[tuple[str, Provenance]] = []
    topology, kv_share = topology_of(scenario, hardware, facts), kv_shares(scenario, facts)
    facts += [
        (name, source) for name, source in hardware.provenance if name.startswith("KV transfer")
    ]
    services = placed_services(scenario, hardware, replicas)
    problem = PlacementProblem(topology, tuple(service.service for service in services))
    names = METHODS if options.method == "all" else (options.method,)
    by_method: dict[str, States] = {}
    for i, name in enumerate(names):
        # The placer calls this now and then, which reports progress and may cancel the run.
        check_alive = partial(progress, 0.5 + 0.3 * i / len(names), f"Placing: {LABELS[name]}")
        check_alive()
        placer = Placer(name, scenario.seed, kv_share, options.time_limit_s, check_alive)
        by_method[name] = placer.states(problem, options.grow)
    # Only KV transfers between prefill and decode replicas depend on the placement.
    transfers = any(service.has_kv_transfers for service in services)
    load = busiest_load(traffic, window, scenario.seed)
    methods = {}
    for i, (name, states) in enumerate(by_method.items()):
        replay = None
        if load is not None and transfers:
            progress(0.8 + 0.2 * i / len(by_method), f"Replaying: {LABELS[name]}")
            replay = replay_state(hardware, services, states[START], load, scenario.seed)
        methods[name] = figures.method_figures(name, states, services, replay)
    replay_notes = [] if load is None else window.replay_notes
    result = PlaceResult(
        scenario=scenario.name,
        counts_from=source,
        headline=figures.headline(methods, transfers),
        methods=methods,
        services=tuple(figures.service_figures(hardware, service) for service in services),
        topology=tuple(figures.region_trees(problem)),
        simulation=Simulated.of(load, figures.simulated_words(methods), traffic.clock),
        warnings=tuple(figures.warnings(methods, transfers)),
        notes=(*figures.notes(source, methods, transfers), *replay_notes, *traffic.notes),
        provenance=facts_of(facts),
        seconds=time.perf_counter() - begun,
    )
    return Outcome(result, tables_of(problem, by_method))


def _fleet_to_place(
    inputs: Inputs, traffic: Traffic, window: Window, options: Options, progress: Progress
) -> tuple[Scenario, Hardware, IntArray, str]:
    """Return (scenario, hardware, replicas, source) of the fleet to place.

    Replicas are ``[model, region, GPU column]``. ``source`` says where their number comes from. If
    the options give a ratio, the returned scenario has prefill and decode pools in place of mixed
    ones. Raises ScenarioError if there are too many GPUs or no fleet.
    """
    scenario = inputs.scenario
    hardware = build_hardware(scenario, inputs.user_facts)
    gpus = hardware.capacity_gpus.sum()
    if gpus > MOST_GPUS:
        raise ScenarioError(
            f"regions: {gpus:,} GPUs are more than the {MOST_GPUS:,} that one run can place. "
            "Place fewer regions."
        )
    counts = options.counts or ("peak" if hardware.today is None else "today")
    if counts != "today":
        replicas, source = _planned_counts(scenario, hardware, traffic, window, counts, progress)
    elif hardware.today is not None:
        replicas, source = hardware.today, "fleet.today"
    else:
        raise ScenarioError(
            "fleet.today: the scenario has no current fleet. Add it, or place the plan's peak."
        )
    if options.ratio is None:
        return scenario, hardware, replicas, source
    prefill, decode = options.ratio
    fleet = current_fleet_rows(hardware, replicas)
    scenario = disaggregated_scenario(scenario, options.ratio, fleet)
    hardware = build_hardware(scenario, inputs.user_facts)
    assert hardware.today is not None
    source += f", mixed pools as {prefill} prefill to {decode} decode"
    return scenario, hardware, hardware.today, source


def _planned_counts(
    scenario: Scenario,
    hardware: Hardware,
    traffic: Traffic,
    window: Window,
    counts: Counts,
    progress: Progress,
) -> tuple[IntArray, str]:
    """Return (replicas, source) of one period of a plan of the window.

    ``counts`` is "peak" (the period with the most GPUs) or "last". Replicas are ``[model, region,
    GPU column]``, and ``source`` names the period. Raises Infeasible if there is no plan.
    """
    lengths = known_lengths(traffic, window, scenario.seed)
    traffic = traffic_with_known_lengths(traffic, lengths)
    sizes = size_over_time(hardware, lengths, scenario.seed, part(progress, 0.0, 0.6))
    no_replicas = np.zeros(hardware.minimum.shape, np.int64)
    current = no_replicas if hardware.today is None else hardware.today
    inputs = PlanInput(settings_of(scenario).plan, hardware, traffic, window, sizes, current)
    plan = plan_window(inputs, part(progress, 0.6, 1.0)).plan
    if counts == "last":
        period, words = len(plan.target) - 1, "last"
    else:
        # Replicas [period, model, region, GPU column] times GPUs per replica [model, GPU column].
        gpus_by_period = np.einsum("plrg,lg->p", plan.target, plan.gpus_per_instance)
        period, words = int(gpus_by_period.argmax()), "largest"
    when = words_of(float(plan.period_start_s[period]), traffic.clock)
    return plan.target[period], f"the plan's {words} period, from {when}"


def tables_of(
    problem: PlacementProblem, by_method: Mapping[str, States]
) -> dict[str, pl.DataFrame]:
    """Return the tables "nodes", "instances" and "units" of a placement run, by name.

    "nodes" has a row per node of the network, "instances" a row per method, state, replica and
    node, and "units" a row per method, state and unit.
    """

    def of_all_states(table_of: Callable[[State], pl.DataFrame]) -> pl.DataFrame:
        """Return the tables of all methods and states as one, with columns that name both."""
        return pl.concat(
            table_of(state).select(
                pl.lit(method).alias("method"), pl.lit(name).alias("state"), pl.all()
            )
            for method, states in by_method.items()
            for name, state in states.items()
        )

    tree = problem.topology
    nodes = pl.DataFrame(
        {
            "node": np.arange(len(tree)),
            "region": [tree.centres[region] for region in tree.centre],
            "s2": tree.s2,
            "s1": tree.s1,
            "rack": tree.rack,
            "priority": [TIERS[tier] for tier in problem.tiers[tree.s1]],
            "gpu": [tree.gpu_types[gpu_type] for gpu_type in tree.gpu],
            "gpus": tree.gpus,
        }
    )
    return {
        "nodes": nodes,
        "instances": of_all_states(_instances),
        "units": of_all_states(_units),
    }


def _instances(state: State) -> pl.DataFrame:
    """Return a table with a row per placed replica and node, of one state of a placement."""
    placement, services = state.placement, state.problem.services
    # The arrays of a placement have an entry per placed part; roles and parts are indices.
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
    """Return a table with a row per placed unit, of one state of a placement."""
    units = state.units
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
    """Return the names of ``services``, which are indices of services of ``state``."""
    return pl.Series([state.problem.services[s].name for s in services], dtype=pl.String)
