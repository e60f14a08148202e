"""The levels of a provisioning study as a document and as tables (docs/provisioning.md)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from planner.scenario.build import Hardware
from planner.scenario.power import power_facts
from planner.scenario.schema import Scenario
from planner.studies.provisioning import basis
from planner.studies.results import documents as doc
from planner.studies.traffic.traffic import Traffic
from planner.studies.traffic.window import Window
from simulation.performance.memory import MEMORY_SHARE
from simulation.performance.power import PowerAtLoad
from simulation.provisioning.levels import FALLEN_BACK, LEVELS, Level, savings

if TYPE_CHECKING:
    from planner.studies.commands.provision import Asked, Case

MODEL, OPERATOR, MODULE = "model", "operator", "module"
WORDS = {OPERATOR: "by operators", MODULE: "by layers", MODEL: "by whole replicas"}
WHAT = (("memory", "memory"), ("energy", "power"))
FILLING = {
    "free": "How long a batch takes to fill is not in the latency, as in the source; count it with "
    "the option batch wait.",
    "counted": "The time that batches take to fill is in the latency (half of it on average), and "
    "the largest batch was chosen with each plan.",
}
KEYS = ("model", "region", "gpu", "phase", "level")


def document(
    scenario: Scenario,
    hardware: Hardware,
    traffic: Traffic,
    window: Window,
    cases: list[Case],
    asked: Asked,
    unknown: Iterable[str] = (),
) -> doc.Document:
    """What ``bin/manage provision --json`` prints; ``unknown``: models left out."""
    wanted = asked.levels
    chosen = [case for case in cases if case.chosen]
    totals = {level: total(chosen, level) for level in (*wanted, MODEL)}
    saved = {level: _saved(totals[MODEL], totals[level]) for level in wanted if level != MODEL}
    pays = any(found["gpus"] > 0 for found in saved.values())
    headline, warnings = words(totals, saved, pays)
    notes = [
        "The load is that of the busiest hour of the window, interactive tiers together, in the "
        "region where requests arise; limits are kept by the mean latency of queueing (M/M/R), "
        "not by a percentile.",
        "In the levels prefill and decode stand on devices of their own; what they need together "
        "is beside them.",
        FILLING[asked.batch_wait],
        *(["GPUs run one stream (as asked): extra replicas stand on GPUs of their own."]
          if asked.single_stream else []),
        *[
            f"{name} is left out: its memory is known but not what it computes; give it by shape "
            "or config."
            for name in unknown
        ],
        *_images(chosen, asked),
        *fallen(chosen),
        *refusals(cases),
        *traffic.notes,
    ]  # fmt: skip
    return doc.cleaned(  # type: ignore[no-any-return]
        {
            "kind": "provision",
            "scenario": scenario.name,
            "method": asked.method,
            "headline": headline,
            "pays": pays,
            "warnings": warnings,
            "levels": {level: totals[level] for level in wanted},
            "savings": saved,
            "pools": [pool(case) for case in cases],
            "window": doc.window_document(window, traffic),
            "provenance": [
                *[
                    {"what": what, "kind": source.kind, "source": source.source}
                    for what, source in [
                        *hardware.provenance,
                        *_power(chosen),
                    ]
                    if not what.startswith("Speed of")
                ],
                *basis.timing_facts(chosen),
                *basis.interference_facts(chosen),
            ],
            "notes": list(dict.fromkeys(notes)),
        }
    )


def _power(cases: list[Case]) -> list[tuple[str, Any]]:
    from planner.catalogue.power import power_model
    from simulation.performance.graph import operator_graph
    from simulation.performance.specs import Arrangement

    facts = []
    for gpu, shape in {case.gpu: (case.service.gpu, case.service.shape) for case in cases}.values():
        if gpu.tdp_w:
            load = PowerAtLoad(power_model(gpu), gpu, operator_graph(shape, Arrangement()))
            facts += [fact for fact in power_facts(gpu, load) if "Server" not in fact[0]]
    return facts


def total(cases: list[Case], level: str) -> doc.Document:
    """Sums over the chosen pools; a pool without the level stands as whole replicas do.

    ``latency_ms`` and ``slo_ms`` are those of the phase nearest to its limit.
    """
    found = [case.levels.get(level) or case.levels[MODEL] for case in cases]
    tightest = max(range(len(found)), key=lambda i: found[i].latency_s / found[i].slo_s)
    gpus = sum(one.devices for one in found)
    bounds = [one.least_devices for one in found]
    least = None
    if all(bound is not None for bound in bounds):
        least = sum(min(bound or 0, one.devices) for bound, one in zip(bounds, found, strict=True))
    near = cases[tightest]
    return {
        "gpus": gpus,
        "energy_w": sum(one.power_w for one in found),
        "memory_gb": sum(one.memory_bytes for one in found) / 1e9,
        "latency_ms": found[tightest].latency_s * 1e3,
        "slo_ms": found[tightest].slo_s * 1e3,
        "tightest": f"{near.phase} of {near.model} in {near.region}",
        "seconds": sum(one.seconds for one in found),
        "gap": None if least is None else (gpus - least) / gpus,
        "gap_of": "devices",
        "least_gpus": least,
    }


def _saved(model: doc.Document, fine: doc.Document) -> dict[str, float]:
    keys = {"gpus": "gpus", "energy": "energy_w", "memory": "memory_gb"}
    return {name: 1.0 - fine[key] / model[key] for name, key in keys.items()}


def words(
    totals: dict[str, doc.Document], saved: dict[str, dict[str, float]], pays: bool
) -> tuple[str, list[str]]:
    """The headline, and what must be said before it."""
    whole = totals[MODEL]
    if not saved:
        return f"Whole replicas need {whole['gpus']} GPUs.", []
    best = min(saved, key=lambda level: (totals[level]["gpus"], totals[level]["energy_w"]))
    mine, share = totals[best], saved[best]
    if not pays:
        what = [f"{_percent(share[key])} {name}" for key, name in WHAT if abs(share[key]) >= 0.005]
        also = f" (it takes {' and '.join(what)})" if what else ""
        return (
            f"Provisioning below the replica does not pay here: whole replicas need "
            f"{whole['gpus']} GPUs, and {WORDS[best]} it is as many{also}.",
            [],
        )
    energy = f"{_percent(share['energy'])} power and {_percent(share['memory'])} memory"
    headline = (
        f"{WORDS[best].capitalize()} {mine['gpus']} GPUs do what whole replicas need "
        f"{whole['gpus']} for: {share['gpus']:.0%} fewer, {energy}."
    )
    warnings = [
        f"{WORDS[level].capitalize()} nothing is saved in GPUs here."
        for level in saved
        if saved[level]["gpus"] <= 0
    ]
    return headline, warnings


def _percent(saving: float) -> str:
    if abs(saving) < 0.005:
        return "as much"
    return f"{abs(saving):.0%} {'less' if saving > 0 else 'more'}"


def pool(case: Case) -> doc.Document:
    """One phase of one model in one region on one GPU type."""
    service, whole = case.service, case.levels.get(MODEL)
    return {
        "model": case.model,
        "region": case.region,
        "gpu": case.gpu,
        "phase": case.phase,
        "chosen": case.chosen,
        "requests_s": service.requests_s,
        "isl": service.isl,
        "osl": service.osl,
        "slo_ms": service.slo_s * 1e3,
        "slo_source": case.limit.source,
        "weights": case.weights,
        "images": service.image_tokens and service.images,
        "image_tokens": service.image_tokens and service.image_tokens / service.images,
        "levels": {level: level_document(case, one) for level, one in case.levels.items()},
        "savings": {
            level: savings(whole, one)
            for level, one in case.levels.items()
            if whole is not None and level != MODEL
        },
    }


def level_document(case: Case, one: Level) -> doc.Document:
    found = {
        "gpus": one.devices,
        "energy_w": one.power_w,
        "memory_gb": one.memory_bytes / 1e9,
        "latency_ms": one.latency_s * 1e3,
        "slo_ms": one.slo_s * 1e3,
        "seconds": one.seconds,
        "gap": one.gap_devices,
        "gap_of": "devices",
        "least_gpus": one.least_devices,
        "gap_slots": one.gap_slots,
        "method": one.method,
        "timing": basis.timing(case.problem, one),
    }
    if one.replicas is not None:
        plan = one.replicas
        found |= {"replicas": plan.replicas, "batch": plan.batch, "parallel": plan.parallel}
    elif one.plan is not None:
        found["bottleneck"] = _names(case, one)[int(one.plan.sojourn_s.argmax())]
    return found


def _names(case: Case, one: Level) -> tuple[str, ...]:
    return (one.cut(case.problem) if one.cut else case.problem).problem.names


def _images(cases: list[Case], asked: Asked) -> list[str]:
    """What encoders were given to do."""
    seen = list(dict.fromkeys(case.model for case in cases if case.service.shape.encoder))
    if not seen:
        return []
    if not asked.images:
        return [
            f"Requests of {' and '.join(seen)} bring no images (the default), so the encoder is "
            "not provisioned; give images per request to add it."
        ]
    return [
        f"Each request of {' and '.join(seen)} brings {asked.images:g} images of "
        f"{asked.image_tokens:,.0f} tokens for the encoder (as asked); what the language model "
        "reads of them is among the input tokens of the trace."
    ]


def fallen(cases: list[Case]) -> list[str]:
    """Where a finer level stands as whole replicas do."""
    return [
        f"{case.model} in {case.region} on {case.gpu}: {WORDS[level]} nothing finer needs fewer "
        f"GPUs in {case.phase}, so it stands {one.method.partition(':')[0]} do."
        for case in cases
        for level, one in case.levels.items()
        if level != MODEL and one.method.startswith(tuple(FALLEN_BACK.values()))
    ]


def refusals(cases: list[Case]) -> list[str]:
    """A sentence per phase that cannot be kept on a GPU type at any count."""
    found = []
    for case in cases:
        if case.levels.get(MODEL) is None:
            fastest = float(case.problem.replica_s.min())
            why = (
                f"one pass of {case.service.isl:,.0f} tokens takes {fastest * 1e3:,.0f} ms at best"
                if fastest > case.service.slo_s
                else "no number of replicas is enough within memory and limit"
            )
            found.append(
                f"{case.phase.capitalize()} of {case.model} in {case.region} does not keep "
                f"{case.service.slo_s * 1e3:,.0f} ms on {case.gpu} by whole replicas: {why}."
            )
    return found


def _rows(cases: list[Case], rows_of: Any, schema: dict[str, Any]) -> pl.DataFrame:
    rows = []
    for case in cases:
        for level in LEVELS:
            if one := case.levels.get(level):
                place = (case.model, case.region, case.gpu, case.phase, level)
                rows += [place + row for row in rows_of(case, one)]
    names = dict.fromkeys(KEYS, pl.String) | schema
    return pl.DataFrame(rows, schema=names, orient="row")


def operators_table(cases: list[Case]) -> pl.DataFrame:
    """One row per operator (module, whole model) of every pool, phase and level."""

    def rows(case: Case, one: Level) -> list[tuple[Any, ...]]:
        if one.replicas is not None:
            plan = one.replicas
            count = plan.replicas, plan.batch, plan.parallel, plan.devices
            latency = one.latency_s * 1e3
            said = basis.word(basis.shares(case.problem, one))
            return [("whole model", "", *count, latency, plan.busy, 1.0, True, said)]
        assert one.plan is not None
        assert one.placement is not None
        phase = one.cut(case.problem) if one.cut else case.problem
        cut = phase.problem
        chosen = one.plan
        b, p = (
            np.searchsorted(cut.batches, chosen.batch),
            np.searchsorted(cut.parallel, chosen.parallel),
        )
        service = cut.latency_s[np.arange(len(cut.names)), b, p]
        busy = cut.rate / chosen.batch * service / chosen.replicas
        worst = int(chosen.sojourn_s.argmax())
        read = phase.measured[:, np.arange(len(cut.names)), b, p]  # [2, V]
        before = [[cut.names[u] for u, w in cut.edges if w == v] for v in range(len(cut.names))]
        return [
            (
                name, " ".join(before[v]) if one.level == OPERATOR else "",
                int(chosen.replicas[v]), int(chosen.batch[v]), int(chosen.parallel[v]),
                int(chosen.slots_of[v]), float(chosen.sojourn_s[v] * 1e3), float(busy[v]),
                float(one.placement.slowdown[v]), v == worst, basis.word(read[:, v]),
            )
            for v, name in enumerate(cut.names)
        ]  # fmt: skip

    return _rows(
        cases,
        rows,
        {
            "operator": pl.String,
            "after": pl.String,
            "replicas": pl.Int64,
            "batch": pl.Int64,
            "parallel": pl.Int64,
            "slots": pl.Int64,
            "sojourn_ms": pl.Float64,
            "busy": pl.Float64,  # share of its time that a replica works
            "slowdown": pl.Float64,  # by what shares its devices
            "bottleneck": pl.Boolean,
            "timing": pl.String,  # what its seconds rest on
        },
    )


def devices_table(cases: list[Case]) -> pl.DataFrame:
    """What each device holds and does, as shares of its memory, arithmetic and bandwidth."""

    def rows(case: Case, one: Level) -> list[tuple[Any, ...]]:
        room = MEMORY_SHARE * case.service.gpu.memory_bytes
        placed = one.placement
        if placed is None:
            return []
        return [
            (d, float(placed.memory_bytes[d] / 1e9), float(placed.memory_bytes[d] / room),
             float(placed.compute[d]), float(placed.bandwidth[d]))
            for d in range(placed.devices)
        ]  # fmt: skip

    return _rows(
        cases,
        rows,
        {
            "device": pl.Int64,
            "memory_gb": pl.Float64,
            "memory": pl.Float64,
            "compute": pl.Float64,
            "bandwidth": pl.Float64,
        },
    )


def shards_table(cases: list[Case]) -> pl.DataFrame:
    """How many shards of each operator stand on each device, and the memory they take."""

    def rows(case: Case, one: Level) -> list[tuple[Any, ...]]:
        placed = one.placement
        if placed is None:
            return []
        names = _names(case, one)
        pairs, counts = np.unique(
            np.stack([placed.device, placed.operator], axis=1), axis=0, return_counts=True
        )
        assert one.plan is not None
        cut = one.cut(case.problem) if one.cut else case.problem
        b = np.searchsorted(cut.problem.batches, one.plan.batch)
        p = np.searchsorted(cut.problem.parallel, one.plan.parallel)
        each = cut.demand.shard_bytes(np.arange(len(names)), b, p, one.plan.replicas) / 1e9
        return [
            (int(d), names[v], int(n), float(n * each[v]))
            for (d, v), n in zip(pairs, counts, strict=True)
        ]

    schema = {
        "device": pl.Int64,
        "operator": pl.String,
        "shards": pl.Int64,
        "memory_gb": pl.Float64,
    }
    return _rows(cases, rows, schema)
