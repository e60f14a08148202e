"""Report the placements of replicas in the network, by method.

A unit is the smallest set of prefill and decode replicas in the ratio of their service. A method
is a scheduler that places units on nodes.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from planner.domain.kinds.place import PlaceResult
from planner.domain.placement.figures import MethodFigures, ServiceUnits
from planner.domain.placement.methods import METHODS
from planner.domain.placement.simulation import MethodReplay, Replay
from planner.domain.report import (
    Fact,
    Form,
    Head,
    Meaning,
    Report,
    Section,
    Table,
    TableColumns,
    key_columns,
    sources_section,
    table,
    table_section,
)
from planner.domain.reports.tables import Tables


def report(result: PlaceResult, _: Tables) -> Report:
    """Return the report of ``place``."""
    methods = [result.methods[name] for name in METHODS if name in result.methods]
    networks = (
        f"{tree.region}: {tree.gpus:,} GPUs, {tree.nodes:,} nodes, {tree.s1:,} S1 and "
        f"{tree.s2:,} S2 switches"
        for tree in result.topology
    )
    source = "the current fleet" if result.counts_from == "fleet.today" else result.counts_from
    return Report(
        title=result.scenario,
        answer=result.headline,
        about=" · ".join((f"Replicas of {source}", *networks)),
        facts=tuple(map(_bandwidth_fact, methods)),
        warnings=result.warnings,
        sections=(
            *table_section(
                "Placements",
                methods,
                *PLACEMENT_COLUMNS,
                note="A unit is the smallest set of replicas in the ratio. Split: prefill and "
                "decode in different RDMA subgroups.",
            ),
            *_simulation(result, methods),
            *sources_section(result.provenance, result.notes),
        ),
    )


def _bandwidth_fact(method: MethodFigures) -> Fact:
    """Return the share of the KV bandwidth that a method loses, and how many units it places."""
    start = method.start
    unplaced = f"{start.unplaced_units:,} without a place" if start.unplaced_units else ""
    return Fact(
        f"KV bandwidth lost, {method.label}",
        start.bandwidth_lost,
        form=Form.SHARE,
        change=unplaced,
        note=f"{start.units:,} units placed",
        meaning=Meaning.RISK if unplaced else Meaning.NEUTRAL,
    )


PLACEMENT_COLUMNS: TableColumns[MethodFigures] = (
    (Head("Method", width=2), lambda row: row.label),
    (Head("Units", Form.COUNT), lambda row: row.start.units),
    (Head("Unplaced", Form.COUNT), lambda row: row.start.unplaced_units),
    (Head("Affinity honoured", Form.SHARE), lambda row: row.start.affinity_honoured),
    (Head("Affinity missed", Form.COUNT), lambda row: row.start.affinity_missed),
    (Head("Split", Form.COUNT), lambda row: row.start.split_units),
    (Head("KV bandwidth lost", Form.SHARE), lambda row: row.start.bandwidth_lost),
    (Head("Free GPUs, priority switches", Form.COUNT), lambda row: row.start.high_free_gpus),
    (Head("Free GPUs, partly used nodes", Form.COUNT), lambda row: row.start.fragmented_gpus),
    (Head("GPUs of a fallback type", Form.COUNT), lambda row: row.start.fallback_gpus),
    (Head("Points", Form.NUMBER), lambda row: row.start.points),
    (Head("Gap", Form.SHARE), lambda row: row.start.gap),
    (Head("Time", Form.SECONDS), lambda row: row.start.seconds),
)


class SimulatedMethod(NamedTuple):
    """A placement method and its simulation."""

    label: str
    simulated: MethodReplay

    @property
    def replay(self) -> Replay:
        """Return the figures of the simulated requests."""
        return self.simulated.replay

    @property
    def worst(self) -> Replay:
        """Return the replay with the bandwidth of the worst unit, which may be the mean."""
        return self.simulated.worst_unit or self.replay


def services_table(services: Sequence[ServiceUnits]) -> Table:
    """Return a table with a row per service: how well one method places its units."""
    return table(
        services,
        (Head("Service", width=2), lambda row: row.service),
        (Head("Units", Form.COUNT), lambda row: row.units),
        (Head("Groups", Form.COUNT), lambda row: row.groups),
        (Head("Affinity missed", Form.COUNT), lambda row: row.missed),
        (Head("Split", Form.COUNT), lambda row: row.split),
        (Head("KV bandwidth left", Form.SHARE), lambda row: row.bandwidth_share),
        (Head("At worst", Form.SHARE), lambda row: row.worst_share),
    )


def _simulation(result: PlaceResult, methods: list[MethodFigures]) -> Iterator[Section]:
    """Yield the section on simulated latencies with each placement, if it was simulated."""
    rows = [SimulatedMethod(row.label, row.simulated) for row in methods if row.simulated]
    attained = Head("SLO attainment: {}", Form.SHARE)
    requests = f"{result.simulation.requests or 0:,} requests"
    span = f"{result.simulation.duration_s or 0:,.0f} s from {result.simulation.start}"
    yield from table_section(
        "Effect on requests",
        rows,
        (Head("Method", width=2), lambda row: row.label),
        (Head("TTFT p95", Form.NUMBER, "ms"), lambda row: row.replay.ttft_ms.p95),
        (Head("TPOT p95", Form.NUMBER, "ms"), lambda row: row.replay.tbt_ms.p95),
        (Head("E2E p95", Form.NUMBER, "ms"), lambda row: row.replay.e2e_ms.p95),
        (Head("E2E p95 of the worst unit", Form.NUMBER, "ms"), lambda row: row.worst.e2e_ms.p95),
        *key_columns(rows, attained, lambda row: row.replay.slo_attainment),
        name="Requests",
        note=f"{requests} of {span}, with the KV bandwidth of each placement (modelled).",
    )
