"""Build the rows of the answer: one deployment each, with its capacity, latency, cost and errors.

A front is a list of deployments, none of which is better than another in both cost and speed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from planner.domain.deployment_search.measured_corrections import Correction, corrections_of
from planner.domain.deployment_search.query import DeploymentQuery
from planner.domain.formats import counted
from planner.domain.pd.figures import ratio_name
from planner.domain.serialise import OPTIONAL, clean, milliseconds
from planner.inputs.catalogue.estimate_calibration import EstimateFit
from planner.inputs.catalogue.power import power_model
from planner.inputs.catalogue.serving import MAX_BATCH, MAX_BATCH_TOKENS
from planner.inputs.estimates.measured_corrections import MeasuredCorrections
from simulation.performance.estimate.calibration import CellSelector
from simulation.performance.graph import operator_graph
from simulation.performance.memory import gpu_kv_bytes, gpu_weight_bytes
from simulation.performance.power import load, watts
from simulation.performance.profile import iteration_s
from simulation.performance.specs import WIDTHS, Arrangement, GpuSpec, ModelShape
from simulation.performance.work import iteration
from simulation.search.search import SearchResult, copies_needed
from simulation.search.values import Instance, RatedCandidate

LATENCY, SPEED = "cost against TTFT", "cost against tokens/s per user"  # names of the fronts
MTOK = 1e6
FIXED_POINT_STEPS = 20  # of the fixed point, which converges in about ten


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """The prefill or decode pool of a disaggregated deployment."""

    instances: int
    gpus: int  # per replica
    tp: int
    pp: int
    attention_dp: int
    moe_tp: int
    moe_ep: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedError:
    """Expected relative errors of the latency estimates, as fractions.

    The median error is ``ttft`` and ``tbt``. The 90th percentile is ``ttft_90`` and ``tbt_90``.
    """

    ttft: float
    tbt: float
    ttft_90: float
    tbt_90: float
    basis: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRows:
    """How the user's own measurements changed the estimate of a deployment."""

    rows: int  # measurements of the same deployment
    alike: int  # measurements of other deployments
    decode_factor: float  # factor on decode times
    prefill_factor: float
    # Expected errors without the measurements, as in ``ExpectedError``.
    ttft_before: float
    tbt_before: float
    ttft_90_before: float
    tbt_90_before: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One deployment at the highest request rate within the limits; None means not known.

    The parallel widths of a disaggregated deployment are those of its decode replicas.
    """

    gpu: str
    gpus: int  # GPUs of all replicas
    tp: int
    pp: int
    attention_dp: int
    moe_tp: int
    moe_ep: int
    precision: str
    kv_precision: str
    engine: str
    engines: tuple[str, ...]  # engines with the same speed
    mode: str  # agg, disagg
    prefill: Side | None
    decode: Side | None
    max_rps: float
    rps_per_gpu: float
    usd_per_gpu_hour: float | None
    usd_per_hour: float | None
    usd_per_mtok: float | None  # per million input and output tokens
    usd_per_mtok_output: float | None  # per million output tokens
    ttft_ms: float | None
    tbt_ms: float | None
    tokens_per_s: float  # output tokens/s
    tokens_per_s_user: float | None
    memory_gb: float  # per GPU, of the pool that uses most
    power_w: float  # of all GPUs at that rate
    j_per_token: float  # per output token
    bound_by: str
    checked: str  # by "simulation" or "closed forms"
    expected_error: ExpectedError
    instances: int | None = None  # copies of the deployment for the query's rate
    fleet_gpus: int | None = None  # of these copies, as the next
    fleet_usd_per_hour: float | None = None
    max_batch: int
    max_batch_tokens: int
    own: MeasuredRows | None = None  # None: the user has no measurements
    front: tuple[str, ...] = ()  # names of the fronts that it is on
    # Sections for a scenario with the speeds of this deployment.
    profiles: tuple[dict[str, Any], ...] | None = field(default=None, metadata={OPTIONAL: True})

    @property
    def label(self) -> str:
        """Return the deployment in words, such as "9 x B200, fp4, 5P:4D"."""
        name = f"{self.gpus} x {self.gpu}, {self.precision}"
        if self.prefill is None or self.decode is None:
            return name
        return f"{name}, {ratio_name(self.prefill.instances, self.decode.instances)}"

    @property
    def parallelism(self) -> list[str]:
        """Return the parallelism of a replica, such as "TP4 PP2", with a line per role."""
        sides: list[tuple[str, Row | Side]] = [("", self)]
        if self.prefill is not None and self.decode is not None:
            sides = [("prefill ", self.prefill), ("decode ", self.decode)]
        names = {"tp": "TP", "pp": "PP", "attention_dp": "DP", "moe_tp": "MoE TP",
                 "moe_ep": "EP"}  # fmt: skip
        lines = []
        for role, side in sides:
            widths = {label: getattr(side, name) for name, label in names.items()}
            parallel = [f"{label}{width}" for label, width in widths.items() if width > 1]
            lines.append(f"{role}{' '.join(parallel) or 'TP1'}")
        return lines


def rows_of(
    rated: Sequence[RatedCandidate],
    query: DeploymentQuery,
    shape: ModelShape,
    fit: EstimateFit,
    measurements: MeasuredCorrections | None,
) -> tuple[Row, ...]:
    """Return a row for each rated deployment.

    ``fit`` has the expected errors of estimates. The user's ``measurements``, if any, lower these
    errors. The speeds of ``rated`` are corrected already.
    """
    rows = tuple(row_of(candidate, query, shape, fit) for candidate in rated)
    if measurements is None:
        return rows
    users = [_cell_selector(candidate, query).users for candidate in rated]
    corrections = corrections_of(rated, users, query, shape, measurements, fit)
    return tuple(map(_with_correction, rows, corrections))


def _with_correction(row: Row, correction: Correction) -> Row:
    """Return ``row`` with its expected errors after correction by the user's measurements.

    No error becomes larger, although measurements of other deployments may predict worse than the
    estimate alone.
    """
    change, before = correction.change, row.expected_error
    (ttft, ttft_90), (tbt, tbt_90) = change.ttft_error, change.tbt_error
    rows = f"{counted(change.rows, 'row')} of this deployment that you measured"
    error = ExpectedError(
        ttft=min(before.ttft, ttft),
        tbt=min(before.tbt, tbt),
        ttft_90=min(before.ttft_90, ttft_90),
        tbt_90=min(before.tbt_90, tbt_90),
        basis=f"{rows}; without them {before.basis}" if change.rows else before.basis,
    )
    measured = MeasuredRows(
        rows=change.rows,
        alike=change.alike,
        decode_factor=correction.decode,
        prefill_factor=correction.prefill,
        ttft_before=before.ttft,
        tbt_before=before.tbt,
        ttft_90_before=before.ttft_90,
        tbt_90_before=before.tbt_90,
    )
    return replace(row, expected_error=error, own=measured)


def fronts_of(
    searched: SearchResult,
    query: DeploymentQuery,
    shape: ModelShape,
    fit: EstimateFit,
    measurements: MeasuredCorrections | None,
) -> tuple[Row, ...]:
    """Return the deployments on the front of latency or of speed, by rising cost.

    A deployment on both fronts has one row, which names both. The last arguments are as in
    ``rows_of``.
    """
    deployments: dict[tuple[object, ...], RatedCandidate] = {}
    fronts: dict[tuple[object, ...], list[str]] = {}
    for name, front in ((LATENCY, searched.latency), (SPEED, searched.speed)):
        for rated in front:
            found = rated.candidate
            # Replicas are compared by identity: both fronts are chosen from the same objects.
            key = (id(found.decode), id(found.prefill), found.prefills, found.decodes, rated.rate)
            deployments[key] = rated
            fronts.setdefault(key, []).append(name)
    rows = rows_of(list(deployments.values()), query, shape, fit, measurements)
    # Both dicts have the same keys in the same order, and so have the rows.
    rows_and_fronts = zip(rows, fronts.values(), strict=True)
    rows = tuple(replace(row, front=tuple(names)) for row, names in rows_and_fronts)
    # Rows without a price count as 0 and come first.
    return tuple(sorted(rows, key=lambda row: (row.usd_per_mtok or 0.0, -row.rps_per_gpu)))


def row_of(
    rated: RatedCandidate, query: DeploymentQuery, shape: ModelShape, fit: EstimateFit
) -> Row:
    """Return the row of one rated deployment; facts that are not known are None."""
    candidate, decode, prefill = rated.candidate, rated.candidate.decode, rated.candidate.prefill
    output_tokens = rated.rate * query.osl
    usd, tbt = clean(candidate.usd_per_hour), clean(rated.tbt_s)
    power = power_w(rated, query, shape)
    row = Row(
        gpu=decode.gpu.name,
        gpus=candidate.gpus,
        **{name: getattr(decode.where, name) for name in WIDTHS},
        precision=decode.where.weights,
        kv_precision=decode.where.kv_cache,
        engine=decode.engines[0],
        engines=decode.engines,
        mode="agg" if prefill is None else "disagg",
        prefill=None if prefill is None else side_of(prefill, candidate.prefills),
        decode=None if prefill is None else side_of(decode, candidate.decodes),
        max_rps=rated.rate,
        rps_per_gpu=rated.rps_per_gpu,
        usd_per_gpu_hour=clean(decode.usd_per_gpu_hour),
        usd_per_hour=usd,
        usd_per_mtok=_usd_per_mtok(usd, output_tokens + rated.rate * query.isl),
        usd_per_mtok_output=_usd_per_mtok(usd, output_tokens),
        ttft_ms=milliseconds(rated.ttft_s),
        tbt_ms=milliseconds(rated.tbt_s),
        tokens_per_s=output_tokens,
        tokens_per_s_user=1.0 / tbt if tbt else None,
        memory_gb=_most_memory_gb(rated, query, shape),
        power_w=power,
        j_per_token=power / output_tokens,
        bound_by=rated.bound_by,
        checked=rated.judged,
        expected_error=expected_error(fit, _cell_selector(rated, query), shape, decode.gpu),
        max_batch=decode.profile.max_batch,
        max_batch_tokens=decode.profile.max_batch_tokens,
    )
    if query.rps is None:
        return row
    copies = copies_needed(rated.rate, query.rps)
    fleet_usd = None if usd is None else copies * usd
    return replace(
        row, instances=copies, fleet_gpus=copies * row.gpus, fleet_usd_per_hour=fleet_usd
    )


def _usd_per_mtok(usd_per_hour: float | None, tokens_per_s: float) -> float | None:
    """Return the dollars per million tokens; None without a price."""
    return None if usd_per_hour is None else usd_per_hour / (tokens_per_s * 3600.0 / MTOK)


def _most_memory_gb(rated: RatedCandidate, query: DeploymentQuery, shape: ModelShape) -> float:
    """Return the memory in use per GPU, in GB, of the pool that uses most."""
    candidate = rated.candidate
    decode, prefill, rate = candidate.decode, candidate.prefill, rated.rate / candidate.decodes
    sequences, _ = _steady_state(decode, rate, query, aggregated=prefill is None)
    used_bytes = _memory_bytes(decode, sequences, query, shape)
    if prefill is not None:
        # A prefill replica computes one prompt at a time.
        used_bytes = max(used_bytes, _memory_bytes(prefill, 1.0, query, shape))
    return used_bytes / 1e9


def _cell_selector(rated: RatedCandidate, query: DeploymentQuery) -> CellSelector:
    """Return the selector of the expected errors of ``rated``: by mode, load and engine."""
    candidate = rated.candidate
    request_s = (clean(rated.ttft_s) or 0.0) + query.osl * (clean(rated.tbt_s) or 0.0)
    in_flight = rated.rate * request_s  # Little's law
    return CellSelector(
        candidate.prefill is not None, in_flight, candidate.decode.engines[0], False
    )


def expected_error(
    fit: EstimateFit, where: CellSelector, shape: ModelShape, gpu: GpuSpec
) -> ExpectedError:
    """Return the expected error of the estimates of the deployments that ``where`` selects.

    It depends on whether the fit had measurements of this model and GPU type.
    """
    basis = fit.basis(shape.name, gpu)
    _, errors = fit.errors[basis].of(where)
    return ExpectedError(
        ttft=errors.ttft,
        tbt=errors.tbt,
        ttft_90=errors.ttft_90,
        tbt_90=errors.tbt_90,
        basis=BASIS[basis],
    )


BASIS = {
    "seen": "this model on this GPU type was measured",
    "model": "unmeasured models such as this one",
    "gpu": "unmeasured GPU types such as this one",
    "both": "models on GPU types that were not measured, as here",
    "vendor_gpu": "GPU types of the vendor that the fit did not see",
    "vendor": "GPUs of vendors that the fit did not see",
}


def side_of(instance: Instance, instances: int) -> Side:
    """Return the figures of a pool of ``instances`` replicas, each like ``instance``."""
    widths = {name: getattr(instance.where, name) for name in WIDTHS}
    return Side(instances=instances, gpus=instance.gpus, **widths)


def profiles_of(row: Row, model: str) -> list[dict[str, Any]]:
    """Return the sections ``profiles`` of a scenario that have the speeds of this deployment."""
    common: dict[str, Any] = {
        "model": model, "gpu": row.gpu, "kind": "roofline", "engine": row.engine,
        "precision": row.precision,
    }  # fmt: skip
    if row.prefill is None or row.decode is None:
        return [common | _widths(row) | _batch_limits(row.attention_dp)]
    return [
        common | {"role": role} | _widths(side) | _batch_limits(side.attention_dp)
        for role, side in (("prefill", row.prefill), ("decode", row.decode))
    ]


def _widths(row: Row | Side) -> dict[str, int]:
    """Return the parallel widths that a scenario's profile has to state, by key.

    Defaults are left out: widths of 1, and experts that are divided as attention is.
    """
    widths = {name: getattr(row, name) for name in WIDTHS}
    if widths["moe_tp"] == widths["tp"] and widths["moe_ep"] == widths["attention_dp"]:
        widths["moe_tp"] = widths["moe_ep"] = 1
    return {name: width for name, width in widths.items() if width > 1}


def _batch_limits(attention_dp: int) -> dict[str, int]:
    """Return the batch limits that a scenario's profile has to state; {} for the defaults.

    They are the defaults times the copies of data-parallel attention.
    """
    if attention_dp == 1:
        return {}
    return {
        "max_batch": MAX_BATCH * attention_dp,
        "max_batch_tokens": MAX_BATCH_TOKENS * attention_dp,
    }


def power_w(rated: RatedCandidate, query: DeploymentQuery, shape: ModelShape) -> float:
    """Return the watts of all GPUs of a deployment at its rate, without their servers."""
    candidate = rated.candidate
    prefill, decode = candidate.prefill, candidate.decode
    rate_per_decode = rated.rate / candidate.decodes
    decode_gpu_w = _decode_w(decode, rate_per_decode, query, shape, aggregated=prefill is None)
    decode_w = candidate.decodes * decode.gpus * decode_gpu_w
    if prefill is None:
        return decode_w
    prefill_gpu_w = _prefill_w(prefill, rated.rate / candidate.prefills, query, shape)
    return decode_w + candidate.prefills * prefill.gpus * prefill_gpu_w


def _decode_w(
    instance: Instance, rate: float, query: DeploymentQuery, shape: ModelShape, *, aggregated: bool
) -> float:
    """Return the mean power of one GPU of a decode replica, in watts.

    ``rate`` is the requests/s of the replica. If it is ``aggregated``, it computes prompts, too.
    """
    gpu = instance.gpu
    if gpu.tdp_w is None:
        return gpu.decode_w
    batch, seconds = _steady_state(instance, rate, query, aggregated=aggregated)
    prompts = rate * seconds if aggregated else 0.0  # per iteration
    pairs = prompts * query.isl**2 / 2.0  # of tokens in attention: each attends to those before it
    mean_iteration = iteration(batch, batch * _context(query), prompts * query.isl, pairs)
    graph = operator_graph(replace(shape, encoder=None), instance.where)
    return float(watts(power_model(gpu), gpu, load(graph, gpu, seconds, mean_iteration)))


def _prefill_w(instance: Instance, rate: float, query: DeploymentQuery, shape: ModelShape) -> float:
    """Return the mean power of one GPU of a prefill replica, in watts, idle time included.

    ``rate`` is the requests/s of the replica.
    """
    gpu, isl = instance.gpu, float(query.isl)
    if gpu.tdp_w is None:
        return gpu.prefill_w
    pairs = isl**2 / 2.0  # of tokens in attention: each attends to those before it
    # An iteration of one prompt, without sequences in decode (batch 0) and their context.
    seconds = float(iteration_s(instance.profile, 0.0, 0.0, isl, pairs))
    graph = operator_graph(replace(shape, encoder=None), instance.where)
    prompt = iteration(prefill_tokens=isl, prefill_pairs=pairs)
    busy_w = float(watts(power_model(gpu), gpu, load(graph, gpu, seconds, prompt)))
    busy_share = min(1.0, rate * seconds)
    return busy_share * busy_w + (1.0 - busy_share) * gpu.idle_w


def _steady_state(
    instance: Instance, rate: float, query: DeploymentQuery, *, aggregated: bool
) -> tuple[float, float]:
    """Return the mean (running sequences, iteration time in s) of a replica at a steady load.

    ``rate`` is the requests/s of the replica. If it is ``aggregated``, an iteration also computes
    the prompts that arrive in it. By Little's law, n sequences take an iteration time T(n) with
    n = rate (OSL - 1) T(n), solved by damped fixed-point iteration.
    """
    batch, seconds = 1.0, 0.0
    for _ in range(FIXED_POINT_STEPS):
        prompts = rate * seconds if aggregated else 0.0  # per iteration
        pairs = prompts * query.isl**2 / 2.0  # of tokens in attention
        kv_tokens, prompt_tokens = batch * _context(query), prompts * query.isl
        seconds = float(iteration_s(instance.profile, batch, kv_tokens, prompt_tokens, pairs))
        in_flight = rate * max(query.osl - 1, 1) * seconds
        batch = float(np.clip((batch + in_flight) / 2.0, 1.0, instance.profile.max_batch))
    return batch, seconds


def _memory_bytes(
    instance: Instance, sequences: float, query: DeploymentQuery, shape: ModelShape
) -> float:
    """Return the bytes that weights and the KV caches of ``sequences`` take on one GPU."""
    arrangement: Arrangement = instance.where
    text_shape = replace(shape, encoder=None)
    sequence_bytes = gpu_kv_bytes(text_shape, round(_context(query)), arrangement)
    gpu_sequences = sequences / arrangement.attention_dp
    return gpu_weight_bytes(shape, arrangement) + gpu_sequences * sequence_bytes


def _context(query: DeploymentQuery) -> float:
    """Return the mean tokens of a running sequence, which is halfway through its answer."""
    return query.isl + query.osl / 2.0
