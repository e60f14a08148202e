"""A placement run as a document and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from planner.optimizer.placement import Measures, PlacementProblem, service_share
from planner.optimizer.placement.problem import HIGH, TIERS
from planner.scenario.build import Hardware
from planner.scenario.schema import Scenario
from planner.studies.placement.services import Placed
from simulation.performance.specs import Provenance
from simulation.topology import LEVELS

if TYPE_CHECKING:
    from planner.studies.commands.place import State

LABELS = {
    "blind": "Blind to topology",
    "algorithm4": "Algorithm 4",
    "exact": "Exact",
}
SAME_E2E, SAME_POINTS = 0.01, 0.002  # of p95 E2E and of attainment: no difference worth a word
Document = dict[str, Any]


def placement_document(
    scenario: Scenario,
    hardware: Hardware,
    problem: PlacementProblem,
    placed: Sequence[Placed],
    states: Mapping[str, Mapping[str, State]],
    simulated: Mapping[str, Document],
    source: str,
    facts: Sequence[tuple[str, Provenance]],
) -> Document:
    """Figures of every method, worst first; simple wins are said first."""
    methods = {
        name: {
            "label": LABELS[name],
            **_state(by_state["start"]),
            "services": _services(placed, by_state["start"]),
            **{step: _state(state) for step, state in by_state.items() if step != "start"},
            "simulated": simulated.get(name),
        }
        for name, by_state in states.items()
    }
    pairs = any(len(one.columns) > 1 for one in placed)
    warnings = _warnings(methods, pairs)
    words = _simulated_words(methods)
    return {
        "kind": "place",
        "scenario": scenario.name,
        "counts_from": source,
        "headline": _headline(methods, pairs),
        "methods": methods,
        "services": [_service(hardware, one) for one in placed],
        "topology": _topology(problem),
        "simulation": {"words": words},
        "warnings": warnings,
        "notes": _notes(pairs, source, any(one["fallback_gpus"] for one in methods.values())),
        "provenance": [
            {"what": what, "kind": told.kind, "source": told.source}
            for what, told in (*facts, *_link_facts(hardware))
        ],
    }


def _state(state: State) -> Document:
    found = state.measures
    return {
        "seconds": state.seconds,
        "points": found.penalty,
        "bound": state.bound,
        "gap": state.gap,
        "units": found.placed_units,
        "gpus": found.placed_gpus,
        "unplaced_units": found.unplaced_units,
        "unplaced": [
            {
                "service": state.problem.services[gap.service].name,
                "unit": list(gap.shape),
                "units": gap.number,
                "reason": gap.reason,
            }
            for gap in state.placement.unplaced
        ],
        "affinity_honoured": found.honoured,
        "affinity_missed": found.missed_units,
        "split_units": found.split_units,
        "bandwidth_lost": found.bandwidth_lost,
        "fallback_gpus": found.fallback_gpus,
        "dear_gpus": found.dear_gpus,
        "high_free_gpus": found.high_free,
        "high_gpus": found.high_gpus,
        "fragmented_gpus": found.fragmented_gpus,
    }


def _services(placed: Sequence[Placed], state: State) -> list[Document]:
    rows = []
    for s, one in enumerate(placed):
        mine = state.measures.units.service == s
        pair = service_share(state.measures.units, s) if len(one.columns) > 1 else None
        rows.append(
            {
                "service": one.service.name,
                "units": int(mine.sum()),
                "groups": _groups(state, s),
                "bandwidth_share": None if pair is None else pair[0],
                "worst_share": None if pair is None else pair[1],
                "missed": int((~state.measures.units.honoured[mine]).sum()),
                "split": int(state.measures.units.split[mine].sum()),
            }
        )
    return rows


def _groups(state: State, s: int) -> int:
    """Deployment groups: the service's share of an RDMA subgroup, of an S1 switch where its
    affinity asks for one."""
    placement, problem = state.placement, state.problem
    s1 = problem.topology.s1[placement.node[placement.service == s]]
    narrow = problem.services[s].affinity == "s1"
    return len(np.unique(s1 if narrow else problem.subgroup[s1]))


def _service(hardware: Hardware, one: Placed) -> Document:
    service = one.service
    return {
        "name": service.name,
        "model": hardware.models[one.model].name,
        "region": hardware.regions[one.region].name,
        "affinity": service.affinity if len(one.columns) > 1 else None,
        "priority": service.priority,
        "needs": TIERS[service.need],
        "roles": [
            {
                "role": hardware.role(g),
                "gpu": hardware.gpus[g].name,
                "gpus": role.gpus,
                "instances": count,
                "parts": [[part.name, part.count, part.gpus] for part in role.parts],
                "fallbacks": [hardware.gpu_types[t].name for t in role.parts[0].types[1:]],
            }
            for g, role, count in zip(one.columns, service.roles, service.wanted, strict=True)
        ],
        "units": [{"instances": list(shape), "units": n} for shape, n in service.shapes],
    }


def _topology(problem: PlacementProblem) -> list[Document]:
    tree, found = problem.topology, []
    for c, name in enumerate(tree.centres):
        mine = tree.centre == c
        tiers = problem.tiers[np.unique(tree.s1[mine])]
        found.append(
            {
                "region": name,
                "nodes": int(mine.sum()),
                "gpus": int(tree.gpus[mine].sum()),
                "racks": len(np.unique(tree.rack[mine])),
                "s1": len(np.unique(tree.s1[mine])),
                "s2": len(np.unique(tree.s2[mine])),
                **{f"s1_{tier}": int((tiers == i).sum()) for i, tier in enumerate(TIERS)},
            }
        )
    return found


def _headline(methods: Mapping[str, Document], pairs: bool) -> str:
    best = methods.get("exact") or methods[next(iter(methods))]
    if not pairs:
        left = best["fragmented_gpus"]
        told = f"{best['units']:,} instances placed, {left:,} GPUs left over on partly used nodes"
        return f"{told}; nothing is handed over, so switches cost no KV bandwidth."
    said = [
        f"{one['label']} {one['bandwidth_lost']:.0%} ({_share(one['affinity_honoured'])})"
        for one in methods.values()
    ]
    return f"KV bandwidth lost across switches (affinity honoured): {', '.join(said)}."


def _warnings(methods: Mapping[str, Document], pairs: bool) -> list[str]:
    """What speaks for the simple way, and what did not find a place."""
    said = []
    blind = methods.get("blind")
    others = {name: one for name, one in methods.items() if name != "blind"}
    if blind and others and pairs and (made := _same(blind, others)):
        said.append(made)
    fewer = methods.get("algorithm4"), methods.get("exact")
    if fewer[0] and fewer[1] and fewer[0]["points"] <= fewer[1]["points"] * 1.001:
        said.append("Algorithm 4 does as well as the exact placement here; it needs no solver.")
    for one in methods.values():
        said += [
            f"{one['label']}: {gap['units']:,} unit{'s' if gap['units'] > 1 else ''} of "
            f"{gap['service']} found no place: {gap['reason']}."
            for gap in one["unplaced"]
        ]
    return said


def _same(blind: Document, others: Mapping[str, Document]) -> str:
    """A sentence where requests do not notice what the baseline does; empty otherwise."""
    sim = blind["simulated"]
    if sim is None or blind["unplaced_units"]:
        return ""
    for other in (one["simulated"] for one in others.values()):
        if other is None or other["e2e_ms"]["p95"] is None or sim["e2e_ms"]["p95"] is None:
            return ""
        if sim["e2e_ms"]["p95"] > (1 + SAME_E2E) * other["e2e_ms"]["p95"]:
            return ""
        pairs = zip(sim["slo_attainment"].values(), other["slo_attainment"].values(), strict=True)
        if any(a is not None and b is not None and a < b - SAME_POINTS for a, b in pairs):
            return ""
    return (
        "Requests do not notice the difference: simulated on the busiest hour, a placement that is "
        f"blind to topology is within {SAME_E2E:.0%} of the 95th percentile of E2E and within "
        f"{100 * SAME_POINTS:g} points of attainment of the others. What topology buys here is "
        "bandwidth and high-priority switches kept free, not speed."
    )


def _simulated_words(methods: Mapping[str, Document]) -> str:
    told = [
        f"{one['label']}: E2E {one['simulated']['e2e_ms']['p95']:,.0f} ms, "
        f"TBT {one['simulated']['tbt_ms']['p95'] or 0:,.1f} ms (95th percentiles)"
        for one in methods.values()
        if one["simulated"] and one["simulated"]["e2e_ms"]["p95"] is not None
    ]
    return "; ".join(told) + "." if told else ""


def _notes(pairs: bool, source: str, fallbacks: bool) -> list[str]:
    notes = [
        f"Instances are those of {source}.",
        "A unit is the smallest number of instances that keeps the ratio of prefill and decode; it "
        "hands KV caches over within itself and is never split by Algorithm 4 or the exact "
        "placement. One whose prefill and decode lie in different subgroups counts as not placed "
        "in the points.",
        "Fewer points are better: per GPU 1000 (times 1 + priority) for a unit without a place, "
        "100 for affinity missed, 30 for a fallback, 10 per step of priority above the need, 20 "
        "times the KV bandwidth lost, 0.01 per GPU left over on a partly used node (assumed: an "
        "order of precedence).",
    ]
    if pairs:
        notes.append(
            "In the simulation each service's links run at the mean that its units' switches leave "
            "(harmonic, by GPUs): requests are handed over at that rate, whichever instances they "
            "meet. A KV cache travels between first and second token, so it shows in TBT and E2E, "
            "not in TTFT, unless transfers queue up."
        )
    if fallbacks:
        notes.append(
            "Instances on fallback GPUs are simulated at the speed of their preferred type: the "
            "figures flatter a placement that uses them."
        )
    return notes


def _link_facts(hardware: Hardware) -> list[tuple[str, Provenance]]:
    return [(what, told) for what, told in hardware.provenance if what.startswith("KV transfer")]


def _share(value: float | None) -> str:
    return "none" if value is None else f"{value:.0%}"


def placement_tables(
    problem: PlacementProblem, states: Mapping[str, Mapping[str, State]]
) -> dict[str, pl.DataFrame]:
    """``nodes``: the tree; ``instances``: what runs where, by method and state, one row per
    instance and node; ``units``: how each unit lies."""
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
    instances, units = [], []
    for method, by_state in states.items():
        for step, state in by_state.items():
            instances.append(_instances(method, step, state))
            units.append(_units(method, step, state.problem, state.measures))
    return {"nodes": nodes, "instances": pl.concat(instances), "units": pl.concat(units)}


def _instances(method: str, step: str, state: State) -> pl.DataFrame:
    placement, services = state.placement, state.problem.services
    role = [services[s].roles[r] for s, r in zip(placement.service, placement.role, strict=True)]
    return pl.DataFrame(
        {
            "method": [method] * len(placement),
            "state": [step] * len(placement),
            "service": [services[s].name for s in placement.service],
            "unit": placement.unit,
            "role": [one.name for one in role],
            "part": [one.parts[p].name for one, p in zip(role, placement.part, strict=True)],
            "instance": placement.instance,
            "node": placement.node,
            "gpus": placement.gpus,
        },
        schema_overrides={
            "method": pl.String,
            "state": pl.String,
            "service": pl.String,
            "role": pl.String,
            "part": pl.String,
        },
    )


def _units(method: str, step: str, problem: PlacementProblem, measures: Measures) -> pl.DataFrame:
    found = measures.units
    return pl.DataFrame(
        {
            "method": [method] * len(found.unit),
            "state": [step] * len(found.unit),
            "service": [problem.services[s].name for s in found.service],
            "unit": found.unit,
            "gpus": found.gpus,
            "within": [LEVELS[level] for level in found.level],
            "affinity_honoured": found.honoured,
            "split": found.split,
            "bandwidth_share": found.share,
            "fallback_gpus": found.fallback_gpus,
            "on_high_priority": found.tier == HIGH,
        },
        schema_overrides={
            "method": pl.String,
            "state": pl.String,
            "service": pl.String,
            "within": pl.String,
        },
    )
