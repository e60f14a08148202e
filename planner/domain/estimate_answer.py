"""Declare the answer of an estimate, under the keys of the contract (interfaces.md)."""

from dataclasses import dataclass, field, replace

import numpy as np

from planner.domain.serialise import OPTIONAL
from planner.domain.sources import provenance_at
from planner.inputs.estimates.at_rate import AtRate
from planner.inputs.estimates.measured_corrections import NextMeasurement
from simulation.performance.fitting.compare import stated_check_of


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateProvenance:
    """The sources of an estimate."""

    kind: str
    source: str
    gpu: str  # source of the GPU's figures
    power: str  # source of the power by load


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedError:
    """The expected error of an estimate: absolute relative errors, as fractions.

    The median error is ``ttft`` and ``tbt``. The 90th percentile is ``ttft_90`` and ``tbt_90``.
    """

    ttft: float
    tbt: float
    ttft_90: float
    tbt_90: float
    basis: str  # measurements behind these errors
    model_checked: bool
    gpu_checked: bool
    outside: tuple[str, ...]  # inputs outside the measured ranges
    newest_version: str | None  # newest measured version, if that of the engine is later
    data_age_days: int  # days since publication of the measurements


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRows:
    """The effect of the user's own measurements on an estimate.

    Values that end in "before" are those without the measurements.
    """

    rows: int  # rows of this deployment
    alike: int  # rows of others with the same engine, GPU or model
    ttft_factor: float
    tbt_factor: float
    ttft_ms_before: float
    tbt_ms_before: float
    tokens_per_s_before: float
    ttft_error_before: float
    ttft_90_before: float
    tbt_error_before: float
    tbt_90_before: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """The errors of a fit that leaves a part of the data out, for similar measured deployments."""

    what: str  # part of the data that the fit did not use
    ttft: float
    tbt: float
    ttft_90: float
    tbt_90: float
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RateAnswer:
    """Further results at a request rate, from the simulation whose mean times the answer has."""

    rate_rps: float
    most_rps: float  # throughput with an endless queue
    in_flight: float  # mean requests in flight
    ttft_p99_ms: float
    tbt_p99_ms: float | None
    closed_loop_ttft_ms: float  # TTFT at constant requests in flight
    closed_loop_tbt_ms: float
    by: str  # the method in words


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateAnswer:
    """The estimate of one deployment in steady state.

    The last three fields are None in a list of estimates.
    """

    model: str
    gpu: str
    mode: str  # agg, disagg
    ttft_ms: float
    tbt_ms: float
    tokens_per_s: float  # output tokens of the whole deployment
    power_w: float  # power of all GPUs, without host and PUE
    j_per_token: float  # joules of the GPUs per output token
    j_per_request: float
    memory_gb: float  # per GPU: weights, and the KV cache in use
    gpus: float
    engine: str
    concurrency: float  # requests in flight: as stated, or at the stated rate
    batch: float  # running sequences of one decode worker
    profile: str
    provenance: EstimateProvenance
    expected_error: ExpectedError
    assumptions: tuple[str, ...]
    own: OwnRows | None
    at_rate: RateAnswer | None = field(default=None, metadata={OPTIONAL: True})
    next_measurement: NextMeasurement | None = field(default=None, metadata={OPTIONAL: True})
    # Measured rows that were not used, and why.
    notes: tuple[str, ...] | None = field(default=None, metadata={OPTIONAL: True})
    # Errors by the part of the data that the fit had not seen.
    left_out: tuple[LeftOut, ...] | None = field(default=None, metadata={OPTIONAL: True})


@dataclass(frozen=True, slots=True)
class Refused:
    """The reason why a deployment has no estimate."""

    refused: str


def answer_at_rate(answer: EstimateAnswer, replayed: AtRate, osl: float) -> EstimateAnswer:
    """Return the answer with its times replaced by those simulated at a request rate.

    ``replayed`` has the results of that simulation, ``osl`` is the mean output tokens. The former
    times, at constant requests in flight, stay in the field ``at_rate`` for comparison.
    """
    tokens_per_s = replayed.rate * osl
    source = provenance_at(replayed.profile, replayed.outside)
    tbt_ms, tbt_p99_ms = replayed.tbt_s * 1e3, replayed.tbt_99_s * 1e3  # infinite: unknown
    expected_error = answer.expected_error
    stated = stated_check_of(replayed.profile) if replayed.built_in else None
    if stated is not None:  # a built-in profile states its error
        expected_error = replace(
            expected_error, ttft=stated.median, tbt=stated.median, ttft_90=stated.p95,
            tbt_90=stated.p95, basis=f"{stated.quantity}: {stated.against}",
        )  # fmt: skip
    return replace(
        answer,
        ttft_ms=replayed.ttft_s * 1e3,
        tbt_ms=tbt_ms if np.isfinite(tbt_ms) else answer.tbt_ms,
        tokens_per_s=tokens_per_s,
        j_per_token=answer.power_w / tokens_per_s,
        j_per_request=answer.power_w / replayed.rate,
        profile=replayed.profile.kind,
        provenance=replace(answer.provenance, kind=source.kind, source=source.source),
        expected_error=expected_error,
        at_rate=RateAnswer(
            rate_rps=replayed.rate,
            most_rps=replayed.most,
            in_flight=replayed.in_flight,
            ttft_p99_ms=replayed.ttft_99_s * 1e3,
            tbt_p99_ms=tbt_p99_ms if np.isfinite(tbt_p99_ms) else None,
            closed_loop_ttft_ms=answer.ttft_ms,
            closed_loop_tbt_ms=answer.tbt_ms,
            by=f"{replayed.requests:,} requests replayed one by one, Poisson arrivals, as "
            "sizes are",
        ),
    )
