"""Build every replica that can serve a model: GPU type, arrangement, precision, engine.

An arrangement is the parallelism of a replica (TP, PP, ...) with the precision of its weights.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from planner.domain.deployment_search.query import HourPrice
from planner.inputs.catalogue.estimate_calibration import efficiencies, estimate_fit
from planner.inputs.catalogue.serving import (
    MAX_BATCH,
    MAX_BATCH_TOKENS,
    batch_limits,
    start_seconds,
    typical_context,
)
from planner.inputs.scenario.measured_corrections import (
    SpeedCorrection,
    deployment_of,
    speed_corrections,
)
from simulation.errors import SimulationError
from simulation.fleet import KvLink
from simulation.performance.adjusted_profile import AdjustedProfile, adjust_profile
from simulation.performance.curves import Curve
from simulation.performance.efficiency import scaled_by_block
from simulation.performance.estimate.calibration import ENGINES
from simulation.performance.estimate.measured_corrections import Times
from simulation.performance.graph import OperatorGraph, operator_graph
from simulation.performance.memory import (
    MEMORY_SHARE,
    OVERHEAD_BYTES,
    gpu_weight_bytes,
    kv_bytes_per_token,
)
from simulation.performance.roofline import roofline_curve
from simulation.performance.specs import BYTES, Arrangement, GpuSpec, ModelShape, Provenance
from simulation.search.space import arrangements
from simulation.search.values import Instance, Mode

KV_CACHE = "bf16"  # the engines' default
PRECISIONS = ("bf16", "fp8", "fp4")  # precisions to quantise to, from the most bits to the fewest
# Engines that support the GPUs of a vendor; those of other vendors (NVIDIA): all engines.
SUPPORTING_ENGINES = {
    "AMD": ("vllm", "sglang"),
    "Intel": ("vllm",),
    "Google": ("vllm",),
    "AWS": ("vllm",),
}
FACTOR_DECIMALS = 9  # decimals to which two factors count as equal
MODELLED = Provenance("modelled", "operators at published peaks (roofline)")

NO_FIT = "does not fit in GPU memory"
NO_PRECISION = "precision not on this GPU"
NO_FACTS = "peaks or links of the GPU are not known"

ReportProgress = Callable[[float, str], None]


@dataclass(frozen=True, slots=True, eq=False)
class CandidateInstances:
    """The replicas that can serve a model, and counts of those that cannot, by reason."""

    instances: tuple[Instance, ...]
    evaluated: int  # number of combinations tried
    ruled_out: Counter[str]  # number of infeasible combinations by reason


def instances_of(
    shape: ModelShape,
    published: str,
    gpus: Sequence[GpuSpec],
    prices: Mapping[str, HourPrice],
    wanted_engines: Sequence[str],
    report: ReportProgress,
    times: Times | None = None,
) -> CandidateInstances:
    """Return all replicas that could serve a model: by GPU type, arrangement, precision, engine.

    ``published`` is the precision of the released weights. Replicas use it, or fewer bits if the
    GPU computes in them. ``prices`` are by GPU type. ``times`` are the user's measurements, which
    correct the speeds; None: there are none.
    """
    instances: list[Instance] = []
    ruled_out: Counter[str] = Counter()
    evaluated = 0
    for done, gpu in enumerate(gpus):
        report(done / len(gpus), f"Arrangements of {gpu.name}")
        supporting = SUPPORTING_ENGINES.get(gpu.vendor, ENGINES)
        engines = tuple(engine for engine in wanted_engines if engine in supporting)
        for weights in precisions(published):
            can_compute = weights == published or bool(gpu.peak_flops.get(weights))
            for arrangement_or_reason in arrangements(shape, gpu, weights, KV_CACHE):
                evaluated += len(engines)
                found_or_reason: list[Instance] | str
                if isinstance(arrangement_or_reason, str):
                    found_or_reason = arrangement_or_reason
                elif not can_compute:
                    found_or_reason = NO_PRECISION
                else:
                    found_or_reason = _instances_per_engine(
                        shape, gpu, arrangement_or_reason, engines, prices[gpu.name]
                    )
                if isinstance(found_or_reason, str):
                    ruled_out[found_or_reason] += len(engines)
                else:
                    instances += found_or_reason
    if times is not None:
        instances = _corrected_by_measurements(instances, shape, times)
    return CandidateInstances(tuple(instances), evaluated, ruled_out)


def _corrected_by_measurements(
    instances: Sequence[Instance], shape: ModelShape, times: Times
) -> list[Instance]:
    """Return the replicas with speeds corrected by the user's measurements.

    Corrections may differ by engine, and between aggregated and disaggregated use. Each different
    correction becomes a separate replica.
    """
    uses: list[tuple[Instance, str, Mode]] = []  # each replica with each engine and mode
    for instance in instances:
        modes: tuple[Mode, ...] = ("agg", "disagg") if instance.link else ("agg",)
        uses += [(instance, engine, mode) for engine in instance.engines for mode in modes]
    deployments = [
        deployment_of(shape, used.gpu, used.where, engine, disaggregated=mode == "disagg")
        for used, engine, mode in uses
    ]
    # Uses of a replica with the same factors become one replica, with the modes of each engine.
    # Keys are (id of the replica, decode factor, prefill factor).
    replicas: dict[tuple[int, float, float], tuple[Instance, SpeedCorrection]] = {}
    modes_of: dict[tuple[int, float, float], dict[str, set[Mode]]] = {}
    corrections = speed_corrections(deployments, times)
    for (instance, engine, mode), correction in zip(uses, corrections, strict=True):
        decode, prefill = correction.decode, correction.prefill
        key = id(instance), round(decode, FACTOR_DECIMALS), round(prefill, FACTOR_DECIMALS)
        replicas.setdefault(key, (instance, correction))
        modes_of.setdefault(key, {}).setdefault(engine, set()).add(mode)
    corrected = []
    for key, (instance, correction) in replicas.items():
        for mode, engines in _by_mode(instance, modes_of[key]).items():
            corrected.append(_with_corrected_speed(instance, correction, engines, mode))
    return corrected


def _by_mode(instance: Instance, modes: Mapping[str, set[Mode]]) -> dict[Mode, tuple[str, ...]]:
    """Return the engines of a replica by the mode that they are used in.

    ``modes`` has the modes of each engine: "agg" and "disagg". The result has "any" for engines
    that are used in all modes of the replica.
    """
    by_mode: dict[Mode, tuple[str, ...]] = {}
    for engine, used_in in modes.items():
        mode: Mode = "any"
        if instance.link and used_in != {"agg", "disagg"}:
            (mode,) = used_in
        by_mode[mode] = (*by_mode.get(mode, ()), engine)
    return by_mode


def _with_corrected_speed(
    instance: Instance, correction: SpeedCorrection, engines: tuple[str, ...], mode: Mode
) -> Instance:
    """Return ``instance`` for these engines and this mode, with corrected speeds."""
    if correction.is_negligible:
        return replace(instance, engines=engines, mode=mode)
    source = Provenance(MODELLED.kind, f"{MODELLED.source}; {correction.words}")
    profile = adjust_profile(
        instance.profile,
        curve=correction.curve(instance.profile.curve),
        start_s=correction.prefill * instance.profile.start_s,
        provenance=source,
    )
    return replace(instance, engines=engines, mode=mode, profile=profile)


def precisions(published: str) -> tuple[str, ...]:
    """Return the released precision, and those of fewer bits to which weights can be quantised."""
    fewer = tuple(precision for precision in PRECISIONS if BYTES[precision] < BYTES[published])
    return (published, *fewer)


def _instances_per_engine(
    shape: ModelShape,
    gpu: GpuSpec,
    arrangement: Arrangement,
    engines: Sequence[str],
    price: HourPrice,
) -> list[Instance] | str:
    """Return a replica per engine, since engines differ in speed.

    If there is none, return the reason: NO_FIT or NO_FACTS.
    """
    usable_bytes = gpu.memory_bytes * MEMORY_SHARE - OVERHEAD_BYTES
    if gpu_weight_bytes(shape, arrangement) >= usable_bytes:
        return NO_FIT  # a fast filter: ``batch_limits`` also counts what a batch needs
    try:
        limits = batch_limits(
            shape, gpu, arrangement, max_batch=MAX_BATCH * arrangement.attention_dp,
            max_batch_tokens=MAX_BATCH_TOKENS * arrangement.attention_dp,
        )  # fmt: skip
    except SimulationError:
        return NO_FIT
    try:
        curves = _curves(operator_graph(shape, arrangement), gpu, engines)
    except SimulationError:
        return NO_FACTS
    link = None  # by which a replica sends KV caches; None: its rate is not known
    if gpu.network_bytes_s:
        context = typical_context(shape.max_context)
        bytes_per_token = kv_bytes_per_token(shape, arrangement.kv_cache, context)
        link = KvLink(bytes_per_token, gpu.network_bytes_s * arrangement.gpus)
    instances = []
    starts = start_seconds(shape, gpu, arrangement, engines)
    for engine, curve, start_s in zip(engines, curves, starts, strict=True):
        profile = AdjustedProfile(
            model=shape.name, gpu=gpu.name, tp=arrangement.gpus, provenance=MODELLED,
            kind="roofline", curve=curve, start_s=start_s, max_batch=limits.max_batch,
            max_batch_tokens=limits.max_batch_tokens, kv_capacity_tokens=limits.kv_capacity_tokens,
        )  # fmt: skip
        instances.append(Instance(gpu, arrangement, (engine,), profile, price.usd, link))
    return instances


def _curves(graph: OperatorGraph, gpu: GpuSpec, engines: Sequence[str]) -> list[Curve]:
    """Return the speed curve of a model's operators on a GPU type, for each engine."""
    by_engine = [efficiencies(engine) for engine in engines]
    # Engines differ only in matrix products that are scaled by block. Without them, one curve does.
    if not any(scaled_by_block(operator, gpu) for operator in graph.operators):
        by_engine = by_engine[:1] * len(engines)
    host = estimate_fit().calibration  # times of the engine's host code
    # Engines with the same scaled factors share a curve.
    distinct = {factors.scaled: factors for factors in by_engine}
    curves = {
        scaled: roofline_curve(graph, gpu, factors, host.iteration_s, host.sequence_s)
        for scaled, factors in distinct.items()
    }
    return [curves[factors.scaled] for factors in by_engine]
