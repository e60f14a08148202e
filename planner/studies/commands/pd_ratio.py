"""Prefill to decode of one service (methods.md D2, D8): all ratios, the best, what moves it."""

from __future__ import annotations

from typing import Any

import polars as pl

from planner.errors import PlannerError
from planner.scenario.build import Hardware, build_hardware
from planner.scenario.known import NOTHING, Known
from planner.scenario.schema import Scenario
from planner.studies.outcome import Outcome, Traces
from planner.studies.pd.drift import over_time, sensitivity
from planner.studies.pd.service import (
    MOST_INSTANCES,
    Columns,
    model_index,
    pairs_of,
    strictest_split,
    usual_instances,
)
from planner.studies.pd.stated import best_document, milliseconds
from planner.studies.progress import Progress, part
from planner.studies.results.documents import moment
from planner.studies.sizing.sizing import Lengths
from planner.studies.traffic.traffic import build_traffic
from simulation.errors import SimulationError
from simulation.sizing.capacity import capacity
from simulation.sizing.pd_judge import REQUESTS, judged
from simulation.sizing.pd_ratio import Best, PdService, Ratio, best_of, ratios, splits

Document = dict[str, Any]
PRODUCTION = "1P/5D to 9P/1D in HeteroScale's production (section 4.1)"


def run(
    scenario: Scenario,
    traces: Traces,
    *,
    service: str,
    instances: int | None = None,
    prefill: str = "",
    decode: str = "",
    known: Known = NOTHING,
    progress: Progress,
) -> Outcome:
    """All ratios of prefill to decode instances of a model, by the keys of the contract.

    ``instances`` in all (by default as many as fit, at most 16); ``prefill`` and ``decode`` name
    GPU types where the model has several, else the pair that carries most per dollar is taken.
    Every ratio by closed forms; the best, its neighbours and whatever lies uphill by simulation.
    Raises PlannerError or SimulationError saying what is wrong.
    """
    hardware = build_hardware(scenario, known)
    m = model_index(hardware, service)
    progress(0.0, "Reading the traffic")
    traffic = build_traffic(scenario, traces)
    lengths = traffic.lengths[m]
    pairs, notes = _pairs(
        hardware, m, lengths, instances, (prefill, decode), part(progress, 0.05, 0.3)
    )
    columns, given, count = pairs[0]["columns"], pairs[0]["service"], pairs[0]["instances"]
    progress(0.3, "Every ratio by closed forms")
    found = ratios(given, splits(count))
    simulate = part(progress, 0.4, 0.75)
    seen = judged(
        given, found, seed=scenario.seed, told=lambda done: simulate(done, "Simulating the best")
    )
    best = best_of(seen, given)
    mixed = _mixed(hardware, m, columns, given, count, scenario.seed)
    progress(0.78, "What moves the ratio")
    moved = sensitivity(given, count, part(progress, 0.78, 0.92))
    drift = over_time(traffic, m, given, count, best.ratio, part(progress, 0.92, 1.0))
    rows = _rows(found, seen, given)
    errors = [row["prediction_error"] for row in rows if row["prediction_error"] is not None]
    document = {
        "kind": "pd-ratio",
        "scenario": scenario.name,
        "service": service,
        "tier": given.tier.name,
        "percentile": 100 * given.tier.attainment,
        "limits": {
            "ttft_ms": milliseconds(given.tier.ttft_s),
            "tbt_ms": milliseconds(given.tier.tbt_s),
            "e2e_ms": milliseconds(given.tier.e2e_s),
        },
        "instances": count,
        "isl": given.workload.facts.mean_isl,
        "osl": given.workload.facts.mean_osl,
        "prefill": _pool(hardware, m, columns.prefill),
        "decode": _pool(hardware, m, columns.decode),
        "link_gb_s": given.link.bytes_s / 1e9,
        "kv_mb": given.link.kv_bytes_per_token * given.workload.facts.mean_isl / 1e6,
        "ratios": rows,
        "best": best_document(best, given),
        "mixed": mixed,
        "headline": _headline(best, mixed, service, count),
        "prediction_error": max(errors, key=abs) if errors else None,
        "judged_by": f"closed forms for every ratio; simulation of both pools, {REQUESTS:,} and "
        f"again {2 * REQUESTS:,} Poisson arrivals at each rate, for the best and those beside it",
        "pairs": [
            {k: v for k, v in pair.items() if k not in ("columns", "service")} for pair in pairs
        ],
        "sensitivity": moved,
        "over_time": [row | {"start": moment(row["start"])} for row in drift],
        "clock": traffic.clock,
        "production_range": PRODUCTION,
        "provenance": [
            {"what": what, "kind": source.kind, "source": source.source}
            for what, source in hardware.provenance
        ],
        "notes": [*notes, *traffic.notes],
    }
    return Outcome(document, {"ratios": pl.DataFrame(rows, infer_schema_length=None)})


def _pairs(
    hardware: Hardware,
    m: int,
    lengths: Lengths,
    instances: int | None,
    names: tuple[str, str],
    progress: Progress,
) -> tuple[list[Document], list[str]]:
    """Pairs of columns with their best ratio by closed forms, most tokens per dollar first."""
    if instances is not None and not 2 <= instances <= MOST_INSTANCES:
        raise PlannerError(f"--instances {instances}: give 2 to {MOST_INSTANCES}.")
    pairs = pairs_of(hardware, m)
    for side, name in zip(("prefill", "decode"), names, strict=True):
        kept = [one for one in pairs if _named(hardware, getattr(one, side), name)]
        if not kept:
            told = sorted({hardware.columns[getattr(one, side)].label for one in pairs})
            raise PlannerError(
                f"--{side} {name}: {hardware.models[m].name} has no such pool; choose from "
                f"{', '.join(told)}."
            )
        pairs = kept
    rows: list[Document] = []
    notes: list[str] = []
    for done, columns in enumerate(pairs):
        progress(done / len(pairs), "Pairs of GPU types")
        count = instances or usual_instances(hardware, m, columns)
        try:
            service, best = strictest_split(hardware, m, columns, lengths, count)
        except SimulationError as problem:
            notes.append(f"Left out: {problem}.")
            continue
        usd = sum(
            n * hardware.profiles[m, g].tp * float(hardware.usd_per_gpu_hour[:, g].min())
            for n, g in ((best.prefill, columns.prefill), (best.decode, columns.decode))
        )
        rows.append(
            {
                "columns": columns,
                "service": service,
                "instances": count,
                "prefill_on": hardware.columns[columns.prefill].label,
                "decode_on": hardware.columns[columns.decode].label,
                "prefill": best.prefill,
                "decode": best.decode,
                "max_tps": best.max_tps,
                "usd_per_hour": usd,
                "usd_per_million_tokens": 1e6 * usd / (3600 * best.max_tps),
            }
        )
    if not rows:
        raise SimulationError(f"{hardware.models[m].name}: {notes[0].removeprefix('Left out: ')}")
    return sorted(rows, key=lambda row: float(row["usd_per_million_tokens"])), notes


def _named(hardware: Hardware, g: int, name: str) -> bool:
    return not name or name in (hardware.columns[g].label, hardware.gpus[g].name)


def _mixed(
    hardware: Hardware, m: int, columns: Columns, service: PdService, count: int, seed: int
) -> Document | None:
    """The same GPUs with every instance doing both, by simulation of one; None where prefill and
    decode stand on different arrangements."""
    if service.prefill.gpu != service.decode.gpu or service.prefill.tp != service.decode.tp:
        return None
    lengths = (service.workload.isl, service.workload.osl)
    try:
        one = capacity(service.decode, lengths, service.tier, seed=seed, batching=service.batching)
    except SimulationError as problem:
        return {"max_tps": 0.0, "max_rps": 0.0, "bound_by": "slo", "note": str(problem)}
    rate = count * one.max_rps
    tokens = rate * service.tokens
    return {"max_tps": tokens, "max_rps": rate, "bound_by": one.bound_by, "note": ""}


def _rows(found: list[Ratio], seen: list[Ratio], service: PdService) -> list[Document]:
    """By ratio what closed forms say, replaced by what simulation says where it was run."""
    by_simulation = {(one.prefill, one.decode): one for one in seen}
    rows = []
    for closed in found:
        simulated = by_simulation.get((closed.prefill, closed.decode))
        one = simulated or closed
        rows.append(
            {
                "prefill": one.prefill,
                "decode": one.decode,
                "max_tps": one.max_tps,
                "max_rps": one.max_rps,
                "bound_by": one.bound_by,
                "side": one.side,
                "ttft_ms": milliseconds(one.ttft_s),
                "tbt_ms": milliseconds(one.tbt_s),
                "transfer_ms": milliseconds(one.transfer_s),
                "by": "simulation" if simulated else "closed forms",
                "closed_tps": closed.max_tps,
                "prediction_error": closed.max_tps / one.max_tps - 1.0
                if simulated and one.max_tps > 0
                else None,
            }
        )
    return rows


def _headline(best: Best, mixed: Document | None, service: str, count: int) -> str:
    ratio = best.ratio
    first = (
        f"{ratio.prefill} prefill to {ratio.decode} decode carries most of {count} instances of "
        f"{service}: {ratio.max_tps:,.0f} tokens/s, bound by {_words(ratio.bound_by)}."
    )
    if mixed is None:
        return first
    if mixed["max_tps"] >= ratio.max_tps:
        return (
            f"Apart does not pay here: {count} mixed instances carry {mixed['max_tps']:,.0f} "
            f"tokens/s within the same limits, the best ratio {ratio.prefill}P/{ratio.decode}D "
            f"{ratio.max_tps:,.0f}."
        )
    if mixed["max_tps"] == 0:
        return f"{first} Mixed instances meet the limits at no rate."
    more = ratio.max_tps / mixed["max_tps"] - 1.0
    return f"{first} That is {more:.0%} more than as many mixed instances."


def _words(bound: str) -> str:
    return bound.upper() if bound in ("ttft", "tbt", "e2e", "slo") else bound


def _pool(hardware: Hardware, m: int, g: int) -> Document:
    profile = hardware.profiles[m, g]
    return {
        "gpu": hardware.gpus[g].name,
        "tp": profile.tp,
        "arrangement": hardware.arrangement(m, g),
        "profile": profile.kind,
        "provenance": profile.provenance.kind,
        "source": profile.provenance.source,
    }
