"""Compute how lengths, limits and the time of day change the best P:D ratio (methods.md D8)."""

import math
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np

from planner.domain.progress import Progress
from planner.domain.serialise import milliseconds, moment
from planner.domain.traffic.traffic import Traffic
from planner.second_process import begin, results_of
from simulation.arrays import FloatArray, Int32Array
from simulation.errors import SimulationError
from simulation.sizing.pd_ratio import ClosedForms, PdService, RatioCapacity
from simulation.sizing.workload import Workload
from simulation.trace import CachedTokens

LENGTH_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)  # factors on the lengths
LIMIT_FACTORS = (0.5, 1.0, 2.0)  # factors on the limits of TTFT and TBT
MAX_WINDOWS = 24  # largest number of windows of a trace
WINDOWS_PER_CALL = 4  # windows of one call in a second process
MIN_REQUESTS = 20  # windows with fewer requests are ignored: their mean lengths are too uncertain
MIN_SAMPLED_REQUESTS = 2_000  # smallest number of requests that thinning leaves


@dataclass(frozen=True, slots=True)
class Split:
    """The best ratio and its tokens/s. ``prefill`` is 0 if no ratio meets the tier's limits."""

    prefill: int = 0
    decode: int = 0
    max_tps: float = 0.0


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """The best ratio at other mean lengths and at other limits."""

    isl: tuple[float, ...]
    osl: tuple[float, ...]
    by_lengths: tuple[tuple[Split, ...], ...]  # [isl][osl]
    ttft_ms: tuple[float | None, ...]
    tbt_ms: tuple[float | None, ...]
    by_limits: tuple[tuple[Split, ...], ...]  # [ttft][tbt]


@dataclass(frozen=True, slots=True)
class Drift:
    """One window of the traffic: its mean lengths, and the P:D ratio that is best for them.

    ``kept_loses`` is the share of the best capacity that a fixed ratio loses in this window; None
    if no ratio meets the tier.
    """

    start: datetime
    isl: float
    osl: float
    prefill: int
    decode: int
    max_tps: float
    kept_loses: float | None


def sensitivity_calls(
    service: PdService, instances: int
) -> list[tuple[tuple[PdService, ...], int]]:
    """Return the arguments of the calls of ``best_splits`` that ``sensitivity`` needs.

    One call per factor on the ISL has all factors on the OSL (``LENGTH_FACTORS``). One call per
    factor on the TTFT limit has all factors on the TPOT limit (``LIMIT_FACTORS``).
    """
    # Take a sample of the requests once, rather than in each evaluation.
    base = replace(service, workload=_scale_lengths(service.workload, isl=1.0, osl=1.0))
    calls = []
    for isl in LENGTH_FACTORS:
        workloads = [_scale_lengths(base.workload, isl, osl) for osl in LENGTH_FACTORS]
        calls.append((tuple(replace(base, workload=work) for work in workloads), instances))
    for ttft in LIMIT_FACTORS:
        calls.append((tuple(_with_limits(base, ttft, tbt) for tbt in LIMIT_FACTORS), instances))
    return calls


def best_splits(services: tuple[PdService, ...], instances: int) -> tuple[Split, ...]:
    """Return the best ratio of ``instances`` replicas for each service, by closed forms."""
    return tuple(_best_split(ClosedForms(service), instances) for service in services)


def sensitivity(service: PdService, instances: int, progress: Progress) -> Sensitivity:
    """Return the best ratios of ``instances`` replicas at other lengths and other latency limits.

    Mean lengths are multiplied by ``LENGTH_FACTORS``, limits by ``LIMIT_FACTORS``.
    """
    splits = results_of(
        best_splits,
        sensitivity_calls(service, instances),
        lambda done: progress(done, "The ratio at other lengths and limits"),
    )
    facts = service.workload.facts
    return Sensitivity(
        isl=tuple(facts.mean_isl * factor for factor in LENGTH_FACTORS),
        osl=tuple(facts.mean_osl * factor for factor in LENGTH_FACTORS),
        by_lengths=tuple(splits[: len(LENGTH_FACTORS)]),
        ttft_ms=_scaled_limits(service.tier.ttft_s),
        tbt_ms=_scaled_limits(service.tier.tbt_s),
        by_limits=tuple(splits[len(LENGTH_FACTORS) :]),
    )


def over_time(
    traffic: Traffic,
    m: int,
    service: PdService,
    instances: int,
    fixed: RatioCapacity,
    progress: Progress,
) -> tuple[Drift, ...]:
    """Return the mean lengths and the best ratio in each window of the traffic, by closed forms.

    ``service`` serves model number ``m`` on ``instances`` replicas. Each window also states what
    share of the best capacity the ratio ``fixed`` loses. Windows with fewer than ``MIN_REQUESTS``
    requests are omitted.
    """
    starts, isl, osl = _windows(traffic, m)
    known = np.flatnonzero(np.isfinite(isl))  # windows with enough requests
    calls = []  # arguments of ``drift_of`` for each batch of windows
    for batch in np.split(known, range(WINDOWS_PER_CALL, len(known), WINDOWS_PER_CALL)):
        call = service, instances, fixed, starts[batch], isl[batch], osl[batch]
        calls.append(call)
        begin(drift_of, *call)  # in the second process, if there is one
    batches = results_of(drift_of, calls, lambda done: progress(done, "The ratio over time"))
    return tuple(drift for drifts in batches for drift in drifts)


def drift_of(
    service: PdService,
    instances: int,
    fixed: RatioCapacity,
    starts: FloatArray,
    isl: FloatArray,
    osl: FloatArray,
) -> list[Drift]:
    """Return the best ratio of ``instances`` replicas in each window, and what ``fixed`` loses.

    ``starts`` are those of the windows (epoch s), ``isl`` and ``osl`` their mean lengths in tokens.
    """
    facts, rows = service.workload.facts, []
    near = fixed.prefill  # prefill replicas at which the search in the next window begins
    for start, mean_isl, mean_osl in zip(starts, isl.tolist(), osl.tolist(), strict=True):
        factors = mean_isl / facts.mean_isl, mean_osl / facts.mean_osl
        forms = ClosedForms(replace(service, workload=_scale_lengths(service.workload, *factors)))
        best = _best_split(forms, instances, near)
        near = best.prefill or near
        lost_share = None  # of the best capacity; None: no ratio meets the limits
        if best.prefill:
            fixed_tps = forms.rate(fixed.prefill, fixed.decode) * forms.service.tokens
            lost_share = max(0.0, 1.0 - fixed_tps / best.max_tps)
        drift = Drift(
            start=moment(start),
            isl=mean_isl,
            osl=mean_osl,
            prefill=best.prefill,
            decode=best.decode,
            max_tps=best.max_tps,
            kept_loses=lost_share,
        )
        rows.append(drift)
    return rows


def _windows(traffic: Traffic, m: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return (starts, mean ISL, mean OSL) of model number ``m`` in each window of the traffic.

    There are at most ``MAX_WINDOWS`` windows of equal length; the last may be shorter. Starts are
    epoch s. Means are NaN in windows with fewer than ``MIN_REQUESTS`` requests.
    """
    demand = traffic.demand
    rows = [i for i, key in enumerate(demand.keys) if key.model == traffic.models[m]]
    bins_per_window = max(1, math.ceil(demand.bins / MAX_WINDOWS))
    first_bins = np.arange(0, demand.bins, bins_per_window)

    def by_window(amounts: FloatArray) -> FloatArray:
        """Return the sum of ``amounts [key, bin]`` of the model in each window."""
        return np.add.reduceat(np.nansum(amounts[rows], axis=0), first_bins)

    requests = by_window(demand.requests)
    requests[requests < MIN_REQUESTS] = np.nan
    isl, osl = by_window(demand.input_tokens) / requests, by_window(demand.output_tokens) / requests
    return np.asarray(demand.start_s + demand.bin_s * first_bins, np.float64), isl, osl


def _scale_lengths(workload: Workload, isl: float, osl: float) -> Workload:
    """Return the workload with lengths times the factors ``isl`` and ``osl``.

    To save time, only every n-th request is used, so that at least ``MIN_SAMPLED_REQUESTS`` remain.
    """
    every = max(1, len(workload.isl) // MIN_SAMPLED_REQUESTS)

    def sampled_lengths(lengths: Int32Array, factor: float) -> Int32Array:
        """Return every n-th length times ``factor``, at least 1 token."""
        return np.asarray(np.maximum(np.rint(lengths[::every] * factor), 1), np.int32)

    cached = None
    if workload.cached is not None:
        cached = CachedTokens(np.floor(workload.cached.tokens[::every] * isl).astype(np.int32))
    return Workload(
        sampled_lengths(workload.isl, isl), sampled_lengths(workload.osl, osl),
        burstiness=workload.burstiness,
        cached=cached,
    )  # fmt: skip


def _with_limits(service: PdService, ttft: float, tbt: float) -> PdService:
    """Return the service with the TTFT and TBT limits of its tier times ``ttft`` and ``tbt``."""
    tier = service.tier
    return replace(
        service,
        tier=replace(
            tier,
            ttft_s=None if tier.ttft_s is None else ttft * tier.ttft_s,
            tbt_s=None if tier.tbt_s is None else tbt * tier.tbt_s,
        ),
    )


def _best_split(forms: ClosedForms, instances: int, near: int | None = None) -> Split:
    """Return the best ratio of ``instances`` replicas by closed forms.

    Its counts are 0 if no ratio meets the tier. The search begins at ``near`` prefill replicas;
    None: anywhere.
    """
    try:
        prefill, rate = forms.best_split(instances, near)
    except SimulationError:
        return Split()
    return Split(prefill, instances - prefill, rate * forms.service.tokens) if rate else Split()


def _scaled_limits(limit_s: float | None) -> tuple[float | None, ...]:
    """Return a limit in milliseconds times each of ``LIMIT_FACTORS``; None if there is no limit."""
    limit_ms = milliseconds(limit_s)
    return tuple(None if limit_ms is None else limit_ms * factor for factor in LIMIT_FACTORS)
