"""Find the capacity of one replica within the SLOs by simulation, and compare closed forms.

A GPU column is one way to run replicas: a GPU type, its number of GPUs and role. Closed forms are
queueing formulas.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl
from pydantic import Field, ValidationInfo, field_validator

from planner.domain.formats import counted, figure
from planner.domain.options import RunOptions
from planner.domain.outcome import Inputs, Outcome
from planner.domain.progress import Progress, part
from planner.domain.results.basis import SizedReplica, facts_at, sized_replicas
from planner.domain.serialise import MERGED, as_json, milliseconds
from planner.domain.sizing.arrivals import (
    POISSON,
    TRACE,
    arrivals_of,
    peak_rps,
    variation_in,
    variation_of,
)
from planner.domain.sizing.closed_form import pool_shape
from planner.domain.sizing.curves import sized_alone, workload_of
from planner.domain.sizing.size_errors import SIMULATION, Bias, SizeError, latency_errors
from planner.domain.sizing.sizing import Sizes, size
from planner.domain.sizing.splits import SplitSize, splits_of
from planner.domain.sources import Fact, provenance_at
from planner.domain.traffic.known_lengths import traffic_before_plan
from planner.domain.traffic.lengths import Lengths
from planner.domain.traffic.traffic import Traffic
from planner.domain.verification.profile_error import (
    UNCHECKED,
    slower_or_faster,
    stated_error,
)
from planner.errors import PlannerError
from planner.inputs.catalogue.measured_profiles import CONTRADICTED
from planner.inputs.scenario.build import Hardware, build_hardware
from planner.inputs.scenario.settings import settings_of
from simulation.errors import SimulationError
from simulation.performance.specs import Provenance
from simulation.sizing.batch_queue import evaluate_pool, saturated_rps
from simulation.sizing.batch_sizing import size_pool
from simulation.sizing.capacity import PRECISION, REQUESTS
from simulation.sizing.pd_slo_split import isolated_tier
from simulation.sizing.pool import SIMULATED, PoolPoint, fewest_instances
from simulation.sizing.trial import SharedPrompts
from simulation.sizing.workload import Burstiness, Workload

ModelColumn = tuple[int, int]  # index of the model, index of the GPU column
CurveRow = dict[str, str | float | None]  # of the table ``curve``: column to value

MOST_TOKENS = 10_000_000  # most tokens of a prompt or an answer
MOST_RPS = 1e6
NAMED_POOLS = 3  # most pools in a headline
# Loads of the latency curves, as shares of the saturation rate: denser where latencies rise.
CURVE_LOADS = (0.02, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.94, 0.97)


class Options(RunOptions):
    isl: int | None = Field(None, title="Input tokens", ge=1, le=MOST_TOKENS)
    """Input tokens of every request, with osl. Default: from the trace."""
    osl: int | None = Field(
        None, title="Output tokens", ge=1, le=MOST_TOKENS, validate_default=True
    )
    """Output tokens of every request, with isl. Default: from the trace."""
    burstiness: str = Field(TRACE, title="Arrivals", max_length=20)
    """trace (default), poisson, or the squared coefficient of variation of the times between
    arrivals."""

    rate: float | None = Field(None, title="Requests per second", gt=0, le=MOST_RPS)
    """Peak requests/s of each model in one region. Default: from the trace."""

    @field_validator("osl")
    @classmethod
    def _check_both_lengths(cls, osl: int | None, info: ValidationInfo) -> int | None:
        """Return ``osl``; raise ValueError if only one of ``isl`` and ``osl`` is given."""
        if "isl" in info.data and (info.data["isl"] is None) != (osl is None):
            missing = "isl" if osl else "osl"
            raise ValueError(
                f"{missing} is missing. Give both, or neither for the lengths of the scenario's "
                "traffic"
            )
        return osl

    @field_validator("burstiness")
    @classmethod
    def _check_burstiness(cls, burstiness: str) -> str:
        """Return ``burstiness``; raise ValueError if it is neither a known word nor a number."""
        variation_of(burstiness)
        return burstiness

    @property
    def lengths(self) -> tuple[int, int] | None:
        """Return the fixed input and output tokens; None: lengths come from the traffic."""
        return None if self.isl is None or self.osl is None else (self.isl, self.osl)


@dataclass(frozen=True, slots=True)
class ClosedForms:
    """Closed-form values at the simulated capacity, and the closed-form capacity."""

    load: float  # share of the saturation rate
    wait_ms: float | None
    e2e_ms: float | None
    e2e_mean_ms: float | None
    utilisation: float
    predicted_rps: float | None
    prediction_error: float | None
    latency_error: SizeError
    latency_bias: Bias


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedPool:
    """The capacity of one replica of a model on a GPU column, with limits, sources and errors."""

    sized: SizedReplica = field(metadata={MERGED: True})
    percentile: float
    ttft_limit_ms: float | None
    tbt_limit_ms: float | None
    attainment: float
    burstiness: float
    profile: str
    provenance: Provenance
    expected_error: float | None
    error_basis: str
    demand_rps: float | None  # demand on the pool; None: not known
    replicas: int | None  # fewest replicas for that demand
    # Fewest replicas for the peak of each region; empty for a stated rate.
    replicas_by_region: Mapping[str, int] = field(default_factory=dict)
    simulated_pools: tuple[PoolPoint, ...]  # pools simulated for the tier that limits a replica
    closed: ClosedForms = field(metadata={MERGED: True})
    max_rps_if_slower: float | None  # by the error of the profile; None: it is not known
    max_rps_if_faster: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeResult:
    """The result of ``size``."""

    kind: str = "size"
    headline: str = ""  # missing in results of earlier releases
    scenario: str
    pools: tuple[SizedPool, ...]
    splits: tuple[SplitSize, ...]  # splits with attention and experts on separate GPUs
    sized_by: str
    size_error: SizeError
    provenance: tuple[Fact, ...]
    notes: tuple[str, ...]


def run(inputs: Inputs, options: Options, progress: Progress) -> Outcome:
    """Find the largest request rate of one replica within the SLO, for each model and GPU column.

    It is also found with profiles that are slower and faster by their error. The table "curve" has
    latencies by rate, by closed forms. Raises PlannerError for invalid options, and ScenarioError
    if no replica of a model meets its SLO.
    """
    progress(0.0, "Reading the traffic")
    notes: list[str] = []
    assumed = _assumed_requests(inputs, options, notes)
    hardware, seed = assumed.hardware, inputs.scenario.seed
    sizes = size(
        hardware, assumed.lengths, seed, part(progress, 0.1, 0.4), assumed.arrivals, assumed.shared
    )
    pools: list[SizedPool] = []
    curves: list[CurveRow] = []
    replicas = sized_replicas(sizes, hardware)
    for model_column, sized in zip(sizes.capacity, replicas, strict=True):
        done = 0.4 + 0.45 * len(pools) / len(replicas)
        progress(done, "Sizing again with the profiles' errors")
        pools.append(_sized_pool(assumed, sizes, model_column, sized, seed))
        curves += map(as_json, _closed_curve(assumed, model_column, sized))
    splits = splits_of(
        hardware, sizes, list(zip(assumed.lengths, assumed.shared, strict=True)),
        assumed.variation, assumed.arrivals, seed, part(progress, 0.85, 0.95),
    )  # fmt: skip
    return Outcome(
        SizeResult(
            headline=headline_of(pools),
            scenario=inputs.scenario.name,
            pools=tuple(pools),
            splits=splits,
            sized_by=_method_words(options, assumed),
            size_error=SIMULATION,
            provenance=facts_at(hardware, sizes),
            notes=(*notes, *_contradiction_sentences(hardware), *sizes.notes),
        ),
        {"curve": pl.DataFrame(curves, infer_schema_length=None)},
    )


def name_of(pool: SizedPool) -> str:
    """Return the model and its GPUs, with the role if the replica does only one phase."""
    replica = pool.sized.replica
    # The arrangement of some replicas ends with the role.
    role = f", {replica.role}"
    if replica.role == "mixed" or replica.arrangement.endswith(role):
        role = ""
    return f"{replica.model} on {replica.arrangement}{role}"


def headline_of(pools: Sequence[SizedPool]) -> str:
    """Return the replicas that the peak demand of each region needs, in words.

    If the demand is not known, or a model has several pools to choose from, return the capacity of
    a replica, at most of the first ``NAMED_POOLS``.
    """
    if all(pool.replicas for pool in pools) and not _has_alternatives(pools):
        return f"{_replicas_for_load(pools)}, before spare replicas"
    capacities = [
        f"{name_of(pool)} {figure(pool.sized.max_rps, 'req/s')}" for pool in pools[:NAMED_POOLS]
    ]
    more = ", and others" if len(pools) > NAMED_POOLS else ""
    return f"One replica within the SLO: {', '.join(capacities)}{more}"


def _replicas_for_load(pools: Sequence[SizedPool]) -> str:
    """Return the replicas for the peak of each region or, without regions, for the stated rate."""
    by_region: Counter[str] = Counter()
    for pool in pools:
        by_region.update(pool.replicas_by_region)
    if not by_region:
        total = sum(pool.replicas or 0 for pool in pools)
        return f"{counted(total, 'replica')} for the stated rate"
    words = f"{counted(by_region.total(), 'replica')} for the peak of the traffic"
    if len(by_region) == 1:
        return words
    regions = ", ".join(f"{n:,} in {region}" for region, n in by_region.items())
    return f"{words} ({regions})"


def _has_alternatives(pools: Sequence[SizedPool]) -> bool:
    """Return whether a model has several pools to choose from.

    Without alternatives, it has one pool, or one for prefill and one for decode.
    """
    roles: dict[str, list[str]] = {}
    for pool in pools:
        roles.setdefault(pool.sized.replica.model, []).append(pool.sized.replica.role)
    return any(sorted(found) not in (["mixed"], ["decode", "prefill"]) for found in roles.values())


@dataclass(frozen=True, slots=True, eq=False)
class _AssumedRequests:
    """The requests to size for, by model, and the hardware that serves them."""

    hardware: Hardware
    lengths: Sequence[Lengths]
    shared: Sequence[SharedPrompts | None]  # cached tokens or blocks of prompts
    variation: Sequence[float]  # squared coefficient of variation of the gaps, for closed forms
    arrivals: Sequence[Burstiness]  # for simulations
    peaks: Sequence[Mapping[str, float]]  # peak requests/s by region; "": stated, of any region
    length_words: str


def _assumed_requests(inputs: Inputs, options: Options, notes: list[str]) -> _AssumedRequests:
    """Return the requests to size for: those that the options state, else the scenario's traffic.

    The traffic is read only if the options leave out lengths or arrivals. Notes on it are appended
    to ``notes``. Raises PlannerError if stated lengths exceed the context of a model.
    """
    hardware = build_hardware(inputs.scenario, inputs.user_facts)
    models, stated_variation = len(hardware.models), variation_of(options.burstiness)
    # Arrivals: their variation and the peak rate of each model.
    traffic: Traffic | None = None
    if options.lengths is None or stated_variation is None:
        traffic = traffic_before_plan(settings_of(inputs.scenario), inputs.traces)
    arrivals = arrivals_of(traffic, stated_variation, models)
    if stated_variation is not None:
        variation = [stated_variation] * models
    else:
        assert traffic is not None
        variation = [variation_in(traffic, m, notes) for m in range(models)]
    peaks: list[dict[str, float]] = [{}] * models  # the demand is not known
    if options.rate is not None:
        peaks = [{"": options.rate}] * models  # "": of any region
    elif traffic is not None:
        peaks = [peak_rps(hardware, traffic, m) for m in range(models)]
    lengths: Sequence[Lengths]
    shared: Sequence[SharedPrompts | None] = [None] * models
    if options.lengths is not None:
        isl, osl = options.lengths
        for model in hardware.models:
            if isl + osl > model.max_context:
                raise PlannerError(
                    f"isl {isl} and osl {osl} are {isl + osl:,} tokens, and the context of "
                    f"{model.name} is {model.max_context:,}. Give less."
                )
        lengths = [(np.array([isl], np.int32), np.array([osl], np.int32))] * models
        length_words = f"{isl:,} input and {osl:,} output tokens each"
    else:
        assert traffic is not None
        # Only the tiers in a model's traffic limit its latency.
        hardware = replace(hardware, tiers_in_use=traffic.tiers_in_use)
        lengths, shared = traffic.lengths, traffic.shared or shared
        length_words = "lengths drawn from the scenario's traffic"
    return _AssumedRequests(hardware, lengths, shared, variation, arrivals, peaks, length_words)


def _method_words(options: Options, assumed: _AssumedRequests) -> str:
    """Return the method by which capacities were found, in words."""
    arrivals = "arrivals (gaps gamma-distributed)"
    if options.burstiness == POISSON:
        arrivals = "Poisson arrivals"
    elif options.burstiness == TRACE:
        arrivals = "arrivals with the bursts of the traffic"
    return (
        f"simulation of one replica by {REQUESTS:,} and {2 * REQUESTS:,} {arrivals}, "
        f"{assumed.length_words}. Capacity: largest rate that meets the tier in both, within "
        f"{PRECISION:.0%}. Pools of {', '.join(map(str, SIMULATED))} are simulated too. Sizes "
        "between them follow 1/sqrt(n)"
    )


def _sized_pool(
    assumed: _AssumedRequests,
    sizes: Sizes,
    model_column: ModelColumn,
    sized: SizedReplica,
    seed: int,
) -> SizedPool:
    """Return the capacity of a replica (``sized``) with its limits, errors and closed forms."""
    m, _ = model_column
    tier, profile = assumed.hardware.tier(sized.tier), assumed.hardware.profiles[model_column]
    error = stated_error(profile)
    isl, _ = assumed.lengths[m]
    _, capacity = sizes.capacity[model_column]
    replicas_by_region = {
        region: fewest_instances(sizes.pool_tps[model_column], rps * float(isl.mean()))
        for region, rps in assumed.peaks[m].items()
    }
    return SizedPool(
        sized=sized,
        percentile=100 * tier.attainment,
        ttft_limit_ms=milliseconds(tier.ttft_s),
        tbt_limit_ms=milliseconds(tier.tbt_s),
        attainment=capacity.attainment,
        burstiness=assumed.variation[m],
        profile=profile.kind,
        provenance=provenance_at(profile, sizes.extrapolated_share(model_column)),
        expected_error=error.value if error else None,
        error_basis=error.basis if error else UNCHECKED,
        demand_rps=max(assumed.peaks[m].values(), default=None),
        replicas=max(replicas_by_region.values(), default=None),
        # A stated rate has the region "".
        replicas_by_region={region: n for region, n in replicas_by_region.items() if region},
        simulated_pools=sizes.pools[model_column].strictest_curve.points,
        closed=_closed_forms(assumed, model_column, sized),
        max_rps_if_slower=_rps_at_error(assumed, model_column, +1, seed),
        max_rps_if_faster=_rps_at_error(assumed, model_column, -1, seed),
    )


def _rps_at_error(
    assumed: _AssumedRequests, model_column: ModelColumn, sign: int, seed: int
) -> float | None:
    """Return the requests/s of a replica whose profile is slower or faster by its error.

    ``sign``: +1 is slower, -1 faster. The result is 0 if no rate meets the SLO, and None if the
    error is not known.
    """
    m, _ = model_column
    profile = assumed.hardware.profiles[model_column]
    error = stated_error(profile)
    if error is None:
        return None
    try:
        return sized_alone(
            assumed.hardware, model_column, assumed.lengths[m], seed,
            burstiness=assumed.arrivals[m], shared=assumed.shared[m],
            profile=slower_or_faster(profile, error.value, sign),
        )  # fmt: skip
    except SimulationError:
        return 0.0


def _contradiction_sentences(hardware: Hardware) -> list[str]:
    """Return a sentence for each built-in profile whose speed contradicts another profile's."""
    sentences = [
        f"{profile.model} on {profile.tp} x {profile.gpu} is {contradiction}."
        for profile in hardware.profiles.values()
        for contradiction in profile.provenance.source.split("; ")
        if contradiction.startswith(CONTRADICTED)
    ]
    return list(dict.fromkeys(sentences))


def _workload(assumed: _AssumedRequests, m: int) -> Workload:
    """Return the requests of model number ``m`` as the closed forms take them."""
    return workload_of(
        assumed.hardware, m, assumed.lengths[m], assumed.shared[m], assumed.variation[m]
    )


def _closed_forms(
    assumed: _AssumedRequests, model_column: ModelColumn, sized: SizedReplica
) -> ClosedForms:
    """Return the closed forms at the simulated capacity of a replica (``sized``), and their error.

    ``predicted_rps``, the capacity by closed forms, is None if they find none.
    """
    hardware, max_rps, tier = assumed.hardware, sized.max_rps, assumed.hardware.tier(sized.tier)
    m, g = model_column
    workload, profile = _workload(assumed, m), hardware.profiles[m, g]
    pool = pool_shape(hardware, m, g)
    saturation_rps = saturated_rps(profile, workload, pool)
    # Stay below the saturation of the formulas, where queues diverge: simulations may exceed it.
    evaluated = evaluate_pool(profile, workload.at(min(max_rps, 0.999 * saturation_rps)), pool)
    try:
        predicted_rps = size_pool(profile, workload, isolated_tier(tier, pool.role), pool).max_rps
    except SimulationError:
        predicted_rps = None
    load = max_rps / saturation_rps
    latency_error, latency_bias = latency_errors(load)
    return ClosedForms(
        load=load,
        wait_ms=milliseconds(evaluated.wait.mean),
        e2e_ms=milliseconds(evaluated.e2e.quantile(tier.attainment)),
        e2e_mean_ms=milliseconds(evaluated.e2e.mean),
        utilisation=evaluated.utilisation,
        predicted_rps=predicted_rps,
        prediction_error=predicted_rps / max_rps - 1.0 if predicted_rps and max_rps else None,
        latency_error=latency_error,
        latency_bias=latency_bias,
    )


def _closed_curve(
    assumed: _AssumedRequests, model_column: ModelColumn, sized: SizedReplica
) -> Iterator[CurveRow]:
    """Yield a row of the table "curve" for each of ``CURVE_LOADS``: latencies by closed forms.

    Latencies without "mean" in their name are at the percentile of the tier. Loads at which queues
    diverge have no row.
    """
    hardware, (m, g) = assumed.hardware, model_column
    workload, profile = _workload(assumed, m), hardware.profiles[m, g]
    pool, target = pool_shape(hardware, m, g), hardware.tier(sized.tier).attainment
    saturation_rps = saturated_rps(profile, workload, pool)
    for load in CURVE_LOADS:
        evaluated = evaluate_pool(profile, workload.at(load * saturation_rps), pool)
        if evaluated.stable:
            ttft, tbt = evaluated.ttft, evaluated.tbt
            yield {
                "model": sized.replica.model,
                "arrangement": sized.replica.arrangement,
                "role": sized.replica.role,
                "rate": load * saturation_rps,
                "load": load,
                "ttft_mean_ms": milliseconds(ttft.mean) if len(ttft.values) else None,
                "ttft_ms": milliseconds(ttft.quantile(target)),
                "tbt_mean_ms": milliseconds(tbt.mean) if len(tbt.values) else None,
                "tbt_ms": milliseconds(tbt.quantile(target)),
                "e2e_ms": milliseconds(evaluated.e2e.quantile(target)),
                "wait_mean_ms": milliseconds(evaluated.wait.mean),
                "utilisation": evaluated.utilisation,
                "batch": evaluated.batch,
            }
