"""Let models share GPUs by memory or by time, and replay the requests on each GPU.

A pool here has all replicas of a region that could share one GPU type. A dedicated replica has its
GPUs alone.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, Literal

import polars as pl
from pydantic import Field

from planner.domain.options import RunOptions
from planner.domain.outcome import Inputs, Outcome
from planner.domain.placement.simulation import busiest_load
from planner.domain.progress import Progress, part
from planner.domain.serialise import as_json
from planner.domain.sharing import figures
from planner.domain.sharing.packing import MEMORY, TIME, Rules, SharedGpuPlan, Sharing
from planner.domain.sharing.pools import (
    SharingPool,
    requests_of,
    sharing_columns,
    sharing_pools,
)
from planner.domain.sources import Fact, facts_of
from planner.domain.traffic.traffic import traffic_and_window
from planner.domain.traffic.window import words_of
from planner.errors import ScenarioError
from planner.inputs.scenario.build import Hardware, build_hardware
from planner.inputs.scenario.settings import settings_of
from planner.optimizer.sharing import MOST_EXACT
from simulation.fleet import HOUR_S
from simulation.performance.specs import Provenance
from simulation.sharing.replay import replay_gpu
from simulation.trace import Trace

MOST_REQUESTS = 300_000  # of the replayed time, so that a run takes minutes at most


class Options(RunOptions):
    by: Literal["best", "memory", "time"] = Field("best", title="Shared by")
    """memory: all weights stay on the GPU, KV caches share the rest. time: weights are swapped with
    the host. best (default): the better one per GPU."""
    switching: Literal["token", "request"] = Field("token", title="Switching")
    """token (default): switch model between tokens. request: switch after the batch."""
    method: Literal["first-fit", "exact"] = Field(
        "first-fit",
        title="Packing",
        description="first-fit (default), with improvement. exact: fewest GPUs, for at most "
        f"{MOST_EXACT} models per GPU type and region.",
    )
    replays: int = Field(3, title="Replays", ge=1, le=20)
    """Replays that must meet every SLO. After the first, models are shifted against each other in
    time. Default: 3."""
    hours: float = Field(1.0, title="Hours", ge=0.1, le=168)
    """Length of the busiest time that is replayed. Default: 1."""

    def rules(self, span_s: float, seed: int) -> Rules:
        """Return the rules by which models may share a GPU, for a replay of ``span_s`` seconds."""
        # Sharing of memory comes first, because it loads no weights.
        ways = (MEMORY, TIME) if self.by == "best" else (self.by,)
        return Rules(ways, self.switching == "request", self.replays, span_s, seed)


@dataclass(frozen=True, slots=True)
class ReplayedTime:
    """The time whose requests are replayed."""

    start: str
    duration_s: float
    requests: int


@dataclass(frozen=True, slots=True)
class ShareResult:
    """The result of ``share``, as ``bin/manage share --json`` prints it."""

    kind: str
    scenario: str
    headline: str
    by: str
    switching: str
    shared: figures.FleetFigures
    dedicated: figures.FleetFigures
    saving: float  # share of the dedicated GPUs
    gpus: tuple[figures.GpuFigures, ...]
    models: tuple[figures.ModelFigures, ...]
    requests: figures.Ledger
    replayed: ReplayedTime
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    provenance: tuple[Fact, ...]
    seconds: float


def run(inputs: Inputs, options: Options, progress: Progress) -> Outcome:
    """Pack the models of each region onto as few GPUs as meet every SLO in replays.

    Raises ScenarioError if no requests arrive, if no model has owned GPUs for whole replicas, or if
    there are too many models for the exact method.
    """
    begun, scenario = time.perf_counter(), inputs.scenario
    hardware = build_hardware(scenario, inputs.user_facts)
    progress(0.0, "Reading the traffic")
    traffic, window = traffic_and_window(settings_of(scenario), inputs.traces)
    load = busiest_load(traffic, window, scenario.seed, options.hours * HOUR_S, MOST_REQUESTS)
    if load is None:
        raise ScenarioError("traffic.sources: no request arrives in the window. Choose another.")
    progress(0.1, "Replaying each model alone")
    host_facts: list[tuple[str, Provenance]] = []
    pools = list(sharing_pools(hardware, scenario.fleet.sharing, load.trace, host_facts))
    if not pools:
        raise ScenarioError(
            "regions: no model with requests has owned GPUs to share. Add capacity for a GPU type "
            "of its profiles with role mixed or decode."
        )
    rules = options.rules(load.duration_s, scenario.seed)
    plans = [
        _plan_pool(pool, options, rules, part(progress, 0.2 + 0.7 * done / len(pools), 0.9))
        for done, pool in enumerate(pools)
    ]
    progress(0.9, "Comparing with GPUs of their own")
    dedicated = figures.fleet_figures(pools, [len(pool.parts) for pool in pools])
    shared = figures.fleet_figures(pools, [len(gpu_plans) for gpu_plans in plans])
    models: list[figures.ModelFigures] = []
    gpus: list[figures.GpuFigures] = []
    for pool, gpu_plans in zip(pools, plans, strict=True):
        on_dedicated_gpus = replace(pool.host, by_memory=True)
        alone = [replay_gpu([replica], on_dedicated_gpus).models[0] for replica in pool.parts]
        models += figures.model_figures(pool, gpu_plans, load.duration_s, alone)
        gpus += figures.gpu_figures(pool, gpu_plans, load.duration_s)
    facts = [
        (name, source)
        for name, source in hardware.provenance
        if name.startswith(("Memory of", "Speed of"))
    ]
    result = ShareResult(
        kind="share",
        scenario=scenario.name,
        headline=figures.headline(shared, dedicated),
        by=options.by,
        switching=options.switching,
        shared=shared,
        dedicated=dedicated,
        saving=1 - shared.gpus / dedicated.gpus,
        gpus=tuple(gpus),
        models=tuple(models),
        requests=figures.ledger([plan for gpu_plans in plans for plan in gpu_plans]),
        replayed=ReplayedTime(
            words_of(load.start_s, traffic.clock), load.duration_s, len(load.trace)
        ),
        warnings=(
            *_models_without_pool(models, hardware, load.trace),
            *_disaggregated_models(models, hardware),
            *_warnings(models, pools, plans, hardware),
        ),
        notes=(
            "Packing fits the replayed time. Other times may need more GPUs. Models without "
            "requests in it are left out.",
            *window.replay_notes,
            *traffic.notes,
        ),
        provenance=facts_of([*facts, *dict(host_facts).items()]),
        seconds=time.perf_counter() - begun,
    )
    return Outcome(result, {"models": _table(models), "gpus": _table(gpus)})


def _plan_pool(
    pool: SharingPool, options: Options, rules: Rules, progress: Progress
) -> list[SharedGpuPlan]:
    """Return a plan for each GPU that the models of one pool need if they share GPUs.

    Raises ScenarioError if there are too many replicas for the exact packing.
    """
    if options.method == "exact" and len(pool.parts) > MOST_EXACT:
        raise ScenarioError(
            f"models: {len(pool.parts)} replicas on {pool.gpu} in {pool.region} are more than "
            f"the {MOST_EXACT} of the exact packing. Use --method first-fit."
        )
    # Packing calls this now and then, which reports progress and may cancel the run.
    check_alive = partial(progress, 0.0, f"Packing {pool.gpu} in {pool.region}")
    return Sharing(pool, rules, check_alive).plan(options.method)


def _models_without_pool(
    models: Sequence[figures.ModelFigures], hardware: Hardware, trace: Trace
) -> Iterator[str]:
    """Yield a warning that names the models that have requests but no GPUs to share, if any."""
    packed = {(row.model, row.region) for row in models}
    missing = []
    for model, region in product(hardware.models, hardware.regions):
        has_requests = requests_of(trace, model.name, region.name).any()
        if has_requests and (model.name, region.name) not in packed:
            missing.append(f"{model.name} in {region.name}")
    if missing:
        yield (
            f"Left out: {', '.join(missing)}. Models share only owned GPUs, with a profile of role "
            "mixed or decode. Add such a profile, and capacity for its GPU type."
        )


def _disaggregated_models(
    models: Sequence[figures.ModelFigures], hardware: Hardware
) -> Iterator[str]:
    """Yield a warning that names the models with separate prefill and decode pools, if any.

    Here, both phases run in one replica.
    """
    model_names = [model.name for model in hardware.models]
    region_names = [region.name for region in hardware.regions]
    disaggregated = set()
    for row in models:
        m, r = model_names.index(row.model), region_names.index(row.region)
        if any(hardware.columns[g].role == "decode" for g in sharing_columns(hardware, m, r)):
            disaggregated.add(row.model)
    if disaggregated:
        yield (
            f"{', '.join(sorted(disaggregated))}: prefill and decode run in one replica here, at "
            "the speed of the decode profile. A plan with separate pools may need fewer GPUs."
        )


def _warnings(
    models: Sequence[figures.ModelFigures],
    pools: Sequence[SharingPool],
    plans: Sequence[Sequence[SharedGpuPlan]],
    hardware: Hardware,
) -> Iterator[str]:
    """Yield warnings on missed SLOs, models with several replicas, and regions with too few GPUs.

    ``plans`` has the plan of each shared GPU, by pool.
    """
    missed = [row for row in models if not row.shared.met]
    if missed:
        names = ", ".join(f"{row.model} in {row.region}" for row in missed)
        yield f"SLO missed without sharing: {names}. Use more GPUs per replica, or another type."
    large = sorted({row.model for row in models if row.replicas_alone > 1})
    if large:
        yield (
            f"{', '.join(large)}: each replica serves a fixed share of the requests here. "
            "A load-balanced pool may need fewer GPUs."
        )
    for r, region in enumerate(hardware.regions):
        for t, gpu in enumerate(hardware.gpu_types):
            needed = sum(
                pool.gpus * len(gpu_plans)
                for pool, gpu_plans in zip(pools, plans, strict=True)
                if (pool.region, pool.gpu) == (region.name, gpu.name)
            )
            if needed > hardware.capacity_gpus[r, t]:
                yield (
                    f"{region.name} has {hardware.capacity_gpus[r, t]:,} {gpu.name}, and the "
                    f"models need {needed:,}."
                )


def _table(rows: Sequence[figures.ModelFigures] | Sequence[figures.GpuFigures]) -> pl.DataFrame:
    """Return figures as a flat table, with lists as text."""
    return pl.DataFrame([_flatten(as_json(row)) for row in rows], infer_schema_length=None)


def _flatten(row: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a row without nested values: ``alone.met`` becomes ``alone_met``."""
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, dict):
            flat |= _flatten(value, f"{prefix}{name}_")
        else:
            flat[prefix + name] = ", ".join(value) if isinstance(value, list) else value
    return flat
