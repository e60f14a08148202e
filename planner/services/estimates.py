"""Estimate deployments for the command line, the REST API and the pages."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from django.utils import timezone

from planner.domain.estimate_answer import (
    EstimateAnswer,
    EstimateProvenance,
    ExpectedError,
    LeftOut,
    OwnRows,
    Refused,
    answer_at_rate,
)
from planner.domain.formats import counted
from planner.errors import EXPECTED, PlannerError
from planner.inputs.catalogue.estimate_calibration import EstimateFit, efficiencies, estimate_fit
from planner.inputs.catalogue.power import power_model
from planner.inputs.estimates.at_rate import (
    AtRate,
    compare_with_built_in,
    narrower_is_faster_sentence,
    requested_estimate,
)
from planner.inputs.estimates.deployment_rows import deployment, named_fields, read_rows
from planner.inputs.estimates.measured_corrections import (
    Change,
    MeasuredCorrections,
    changes,
    corrected_estimate,
    next_measurement,
)
from planner.inputs.scenario.user_facts import UserFacts
from planner.selectors.hardware import own_hardware
from planner.selectors.measured_corrections import (
    measurements_of_rows,
    merge_measurements,
    stored_measurements,
)
from simulation.performance.estimate.calibration import ENGINES, CellSelector
from simulation.performance.estimate.defaults import MAX_TENSOR_PARALLEL, Deployment
from simulation.performance.estimate.estimate import Estimate, RefusedEstimate, estimate_rows
from simulation.performance.graph import operator_graph
from simulation.performance.power import load, watts
from simulation.performance.specs import Arrangement
from simulation.performance.work import Iteration, iteration

ALWAYS_BUSY = 0.98  # busy share of the time above which workers count as always busy
Row = Mapping[str, Any]

# What the stated error of an estimate was measured on. The fit is that of the estimate's speeds to
# measured benchmark rows.
BASIS = {
    "seen": "the fit's own rows of this model and GPU type",
    "version": "rows of this model and GPU type, whose engine version was left out of the fit",
    "model": "models that the fit has not seen, such as this one",
    "gpu": "GPU types that the fit has not seen, such as this one",
    "both": "models on GPU types, both unseen by the fit, as here",
    "vendor_gpu": "GPU types of this vendor that the fit had not seen",
    "vendor": "unseen GPU vendor, so the error is a factor",
}
# What was left out of a fit, to measure its error on that. The page compares these errors.
UNSEEN = {
    "seen": "nothing",
    "version": "engine version",
    "source": "measurement source",
    "model": "model",
    "gpu": "GPU type",
    "both": "model and GPU type",
    "vendor_gpu": "GPU type, other vendor",
    "vendor": "GPU vendor",
}


@dataclass(frozen=True, slots=True, eq=False)
class MeasurementSource:
    """Where measurements that correct estimates come from: the request, the uploads, or both."""

    rows: Sequence[Row | str] = ()  # of the request: columns of an estimate, ttft_ms and tbt_ms
    name: str = "measured"  # what messages call these rows
    use_stored: bool = True  # use the uploaded measurements too

    def own_measurements(self, user_facts: UserFacts) -> MeasuredCorrections | None:
        """Return the measurements of both sources together; None if there are none."""
        sent = measurements_of_rows(self.rows, self.name, user_facts) if self.rows else None
        stored = stored_measurements(user_facts) if self.use_stored else None
        return merge_measurements(sent, stored)


STORED_MEASUREMENTS = MeasurementSource()


def measurements_from_file(file: str | None, *, use_stored: bool) -> MeasurementSource:
    """Return the measurements of the table ``file`` (None: none), and with ``use_stored`` uploads.

    Raises IngestError if the file cannot be read.
    """
    if not file:
        return MeasurementSource(use_stored=use_stored)
    return MeasurementSource(read_rows(file), Path(file).name, use_stored)


def estimate_one(row: Row, source: MeasurementSource = STORED_MEASUREMENTS) -> EstimateAnswer:
    """Return the estimate of one deployment.

    ``row`` has the options of ``bin/manage estimate`` as keys, with - or _. The answer has more
    than those of ``estimate_many``: the next measurement, notes, and the errors of fits that leave
    a part of the data out. Raises PlannerError or SimulationError for a wrong value or an
    impossible deployment.
    """
    (answer,) = estimate_many([row], source)
    if isinstance(answer, Refused):
        raise PlannerError(answer.refused)
    fit, hardware = estimate_fit(), own_hardware()
    measurements, model = source.own_measurements(hardware), str(named_fields(row)["model"])
    deployed = deployment(dict(row) | {"concurrency": answer.concurrency}, hardware)
    properties = replace(error_properties(deployed), split=answer.mode == "disagg")
    left_out = []
    for basis, what in UNSEEN.items():
        _, error = fit.errors[basis].of(properties)  # of similar deployments
        left_out.append(LeftOut(what=what, **asdict(error)))
    return replace(
        answer,
        next_measurement=next_measurement(measurements, deployed, model, fit),
        notes=measurements.notes if measurements else (),
        assumptions=(*answer.assumptions, *narrower_is_faster_sentence(deployed)),
        left_out=tuple(left_out),
    )


def estimate_sweep(
    row: Row, loads: Sequence[float], source: MeasurementSource = STORED_MEASUREMENTS
) -> list[tuple[float, EstimateAnswer]]:
    """Return (load, estimate) of one deployment at other concurrencies (requests in flight).

    Loads without an estimate are omitted. What ``row`` leaves open, such as the number of workers,
    is chosen once, at its own concurrency. So all estimates are of the same deployment.
    """
    fit, hardware = estimate_fit(), own_hardware()
    deployed = deployment(row, hardware)
    (own_estimate,) = estimate_rows([deployed], fit.calibration, efficiencies())
    if isinstance(own_estimate, RefusedEstimate):
        return []
    # ``fixed`` has the values chosen at the row's own concurrency.
    chosen = own_estimate.arranged
    fixed = replace(deployed, decode=chosen.decode, decode_workers=chosen.decode_workers)
    if chosen.split:
        fixed = replace(fixed, prefill=chosen.prefill, prefill_workers=chosen.prefill_workers)
    fixed_at_loads = [replace(fixed, concurrency=float(load)) for load in loads]
    estimates = estimate_rows(fixed_at_loads, fit.calibration, efficiencies())
    # Measured rows belong to deployments as they were given, without the values chosen above.
    given_at_loads = [replace(deployed, concurrency=float(load)) for load in loads]
    corrections = _measured_changes(source.own_measurements(hardware), given_at_loads, fit)
    answers = []
    for concurrency, at_load, estimate, correction in zip(
        loads, fixed_at_loads, estimates, corrections, strict=True
    ):
        if not isinstance(estimate, RefusedEstimate):
            answers.append((concurrency, _answer_row(at_load, estimate, fit, correction)))
    return answers


def estimate_many(
    rows: Sequence[Row | str], source: MeasurementSource = STORED_MEASUREMENTS
) -> list[EstimateAnswer | Refused]:
    """Return one answer per row, in order; ``Refused`` for a row without an estimate.

    An item of ``rows`` that is a string is the reason why that row could not be read.
    """
    fit, hardware = estimate_fit(), own_hardware()
    measurements = source.own_measurements(hardware)
    measured_hardware = replace(hardware, own=measurements.times if measurements else None)
    requested = [_requested(row, measured_hardware) for row in rows]
    accepted = [row for row in requested if not isinstance(row, Refused)]
    deployments = [deployed for deployed, _ in accepted]
    estimates = iter(estimate_rows(deployments, fit.calibration, efficiencies()))
    corrections = iter(_measured_changes(measurements, deployments, fit))
    answers: list[EstimateAnswer | Refused] = []
    for row in requested:
        if isinstance(row, Refused):
            answers.append(row)
            continue
        estimate, correction = next(estimates), next(corrections)
        if isinstance(estimate, RefusedEstimate):
            answers.append(Refused(estimate.reason))
            continue
        deployed, at_rate = row
        answer = _answer_row(deployed, estimate, fit, correction)
        answers.append(answer_at_rate(answer, at_rate, deployed.osl) if at_rate else answer)
    return answers


def _requested(row: Row | str, hardware: UserFacts) -> tuple[Deployment, AtRate | None] | Refused:
    """Return the deployment that a row asks for, and its rate if it has one, or the refusal."""
    if isinstance(row, str):
        return Refused(row)
    try:
        deployed, at_rate = requested_estimate(row, hardware)
    except EXPECTED as problem:
        return Refused(str(problem))
    heads = deployed.shape.heads
    divisors = [str(tp) for tp in range(2, MAX_TENSOR_PARALLEL) if heads % tp == 0]
    for tp in (deployed.decode.tp, (deployed.prefill or deployed.decode).tp):
        # A larger tp counts the GPUs of all workers.
        if tp <= MAX_TENSOR_PARALLEL and heads % tp != 0:
            return Refused(
                f"tp is {tp}, which does not divide the {heads} attention heads of "
                f"{deployed.shape.name}. Use 1, or one of {', '.join(divisors)}."
            )
    return deployed, at_rate


def _measured_changes(
    measurements: MeasuredCorrections | None, deployments: Sequence[Deployment], fit: EstimateFit
) -> list[Change | None]:
    """Return the correction of each deployment's estimate by ``measurements``; None without one."""
    if measurements is None:
        return [None] * len(deployments)
    return list(changes(measurements, deployments, fit))


def _answer_row(
    deployed: Deployment, uncorrected: Estimate, fit: EstimateFit, change: Change | None = None
) -> EstimateAnswer:
    """Return the answer for a deployment: its estimate, corrected by ``change``, and its error.

    ``change`` comes from the user's own measurements; None: there are none. The expected error is
    that of similar benchmark rows, or the error of these measurements if that is smaller.
    """
    split = uncorrected.arranged.split  # also if the estimate chose the split itself
    estimate = corrected_estimate(uncorrected, change, deployed.osl) if change else uncorrected
    power = power_w(deployed, estimate)
    fitted = _fitted_error(deployed, fit, change, split=split)
    return EstimateAnswer(
        model=deployed.shape.name,
        gpu=deployed.gpu.name,
        mode="disagg" if split else "agg",
        ttft_ms=estimate.ttft_s * 1e3,
        tbt_ms=estimate.tbt_s * 1e3,
        tokens_per_s=estimate.tokens_per_s,
        power_w=power,
        j_per_token=power / estimate.tokens_per_s,
        j_per_request=power / estimate.tokens_per_s * deployed.osl,
        memory_gb=estimate.memory_bytes / 1e9,
        gpus=estimate.arranged.gpus,
        engine=deployed.engine,
        concurrency=deployed.concurrency,
        batch=estimate.batch,
        profile="roofline",
        provenance=EstimateProvenance(
            kind="modelled",
            source=(
                "operators at the speed of measured kernels of the GPU's family, with serving "
                f"overhead fitted to {fit.source}"
            ),
            gpu=deployed.gpu.provenance.source,
            power=power_model(deployed.gpu).provenance.source,
        ),
        expected_error=_smaller_errors(fitted, change),
        assumptions=(
            *estimate.assumptions,
            *_bottleneck_notes(deployed, estimate),
            *compare_with_built_in(deployed, estimate),
        ),
        own=_own_correction(uncorrected, change, fitted),
    )


def _fitted_error(
    deployed: Deployment, fit: EstimateFit, change: Change | None, *, split: bool
) -> ExpectedError:
    """Return the expected error of a deployment's estimate: the error of similar benchmark rows.

    ``change``, the correction by the user's measurements, is only mentioned in the basis in words.
    ``split``: prefill and decode run on separate replicas.
    """
    version = f"{deployed.engine} {deployed.version}" if deployed.version else ""
    basis = fit.basis(deployed.shape.name, deployed.gpu, version)
    age_days = (timezone.localdate() - fit.published).days
    later_version = fit.later_version_warning(deployed.engine, deployed.version)
    version_notes = [f"{later_version}, {age_days} days ago"] if later_version else []
    # A cell is a group of benchmark rows that are alike in mode, load and engine.
    cell_key, cell = fit.errors[basis].of(replace(error_properties(deployed), split=split))
    workload = {"isl": deployed.isl, "osl": deployed.osl, "concurrency": deployed.concurrency}
    return ExpectedError(
        ttft=cell.ttft,
        tbt=cell.tbt,
        ttft_90=cell.ttft_90,
        tbt_90=cell.tbt_90,
        basis=_error_basis(basis, change, _cell_words(cell_key, cell.rows)),
        model_checked=deployed.shape.name in fit.models,
        gpu_checked=deployed.gpu.name in fit.gpus,
        outside=(
            *fit.values_out_of_range(workload),
            *_unmeasured_notes(deployed),
            *version_notes,
        ),
        newest_version=fit.newest_before(deployed.engine, deployed.version) or None,
        data_age_days=age_days,
    )


def _cell_words(key: str, rows: int) -> str:
    """Return a phrase for ``rows`` benchmark rows that are alike.

    ``key`` says in what, such as "disagg high vllm": the mode, then load, engine and speculative
    decoding if they matter.
    """
    mode, *details = key.split()
    parts = [f"{rows:,} {'disaggregated' if mode == 'disagg' else 'aggregated'} deployments"]
    in_flight = {"low": "up to 16", "middle": "up to 128", "high": "above 128"}
    for detail in details:
        if detail in in_flight:
            parts.append(f"{in_flight[detail]} requests in flight")
        elif detail in ENGINES:
            parts.append(detail)
        elif detail == "drafts":
            parts.append("with drafted tokens")
    return ", ".join(parts)


def _smaller_errors(error: ExpectedError, change: Change | None) -> ExpectedError:
    """Return ``error``, with each figure that is larger than that of ``change`` replaced by it.

    ``change`` is the correction by the user's own measurements; None: there are none.
    """
    if change is None:
        return error
    (ttft, ttft_90), (tbt, tbt_90) = change.ttft_error, change.tbt_error
    return replace(
        error,
        ttft=min(error.ttft, ttft),
        ttft_90=min(error.ttft_90, ttft_90),
        tbt=min(error.tbt, tbt),
        tbt_90=min(error.tbt_90, tbt_90),
    )


def error_properties(deployed: Deployment) -> CellSelector:
    """Return the properties of a deployment on which the error of its estimate depends."""
    return CellSelector(
        split=deployed.prefill is not None,
        users=deployed.concurrency,
        engine=deployed.engine,
        drafts=deployed.drafted > 0,
    )


def _error_basis(basis: str, change: Change | None, benchmarks: str) -> str:
    """Return in words on which measurements the stated error of an estimate is based.

    ``basis`` is a key of BASIS, and ``benchmarks`` describes its benchmark rows. ``change`` is the
    correction by the user's own measurements; None: there are none.
    """
    basis_words = f"{BASIS[basis]}: {benchmarks}"
    if change is None or not change.rows:
        return basis_words
    rows = f"{counted(change.rows, 'measured row')} of this deployment"
    return f"{rows}; without them {basis_words}"


def _own_correction(
    before: Estimate, change: Change | None, error: ExpectedError
) -> OwnRows | None:
    """Return how the user's measurements changed an estimate; None if they did not.

    ``before`` is the estimate without them, ``change`` their correction.
    """
    if change is None:
        return None
    return OwnRows(
        rows=change.rows,
        alike=change.alike,
        ttft_factor=change.ttft,
        tbt_factor=change.tbt,
        ttft_ms_before=before.ttft_s * 1e3,
        tbt_ms_before=before.tbt_s * 1e3,
        tokens_per_s_before=before.tokens_per_s,
        ttft_error_before=error.ttft,
        ttft_90_before=error.ttft_90,
        tbt_error_before=error.tbt,
        tbt_90_before=error.tbt_90,
    )


def prefill_busy_share(deployed: Deployment, estimate: Estimate) -> float:
    """Return the share of time that the prefill workers of a disaggregated deployment are busy.

    Above 1, they are overloaded: prompts arrive faster than all workers together process them.
    """
    workers = estimate.arranged.prefill.attention_dp * estimate.arranged.prefill_workers
    requests_per_s = estimate.tokens_per_s / deployed.osl
    return requests_per_s * estimate.prompt_s / workers


def _unmeasured_notes(deployed: Deployment) -> list[str]:
    """Return why the stated errors may not apply: LoRA, or a GPU without measured kernels."""
    notes = ["no deployment with LoRA adapters was measured"] if deployed.shape.adapters else []
    family = deployed.gpu.family
    if family in {entry.family for entry in efficiencies().entries}:
        return notes
    return [
        *notes,
        f"no kernel was measured on {deployed.gpu.name} or its family ({family or 'not named'}); "
        "kernels of another family are used, so expect larger errors",
    ]


def _bottleneck_notes(deployed: Deployment, estimate: Estimate) -> list[str]:
    """Return a note if the given number of prefill workers limits the throughput, else []."""
    if deployed.prefill_workers is None or prefill_busy_share(deployed, estimate) < ALWAYS_BUSY:
        return []
    return ["prefill workers are always busy and limit throughput. The rest wait"]


def power_w(deployed: Deployment, estimate: Estimate) -> float:
    """Return the power (W) of all GPU boards together at the estimated load, without servers.

    For a GPU type without a TDP, it is the type's decode power. Decode GPUs work without pause.
    Separate prefill GPUs are idle for part of the time.
    """
    gpu, arranged = deployed.gpu, estimate.arranged
    if gpu.tdp_w is None:
        return estimate.arranged.gpus * gpu.decode_w
    # Decode GPUs, which may prefill too.
    context = estimate.batch * (deployed.isl + deployed.osl / 2.0)
    attention_pairs = deployed.isl**2 / 2.0  # pairs of tokens in the attention of one prompt
    # Prompts that start per decode iteration; none if prefill runs on separate replicas.
    prompts = 0.0 if arranged.split else estimate.batch / deployed.osl
    decode_work = iteration(
        estimate.batch, context, prompts * deployed.isl, prompts * attention_pairs
    )
    decode_gpu_w = _busy_w(deployed, arranged.decode, estimate.tbt_s, decode_work)
    decode_w = decode_gpu_w * arranged.decode.gpus * arranged.decode_workers
    if not arranged.split:
        return decode_w
    # Separate prefill GPUs.
    ranks = arranged.prefill.attention_dp  # each computes a prompt at a time
    prefill_work = iteration(
        prefill_tokens=ranks * deployed.isl, prefill_pairs=ranks * attention_pairs
    )
    busy_gpu_w = _busy_w(deployed, arranged.prefill, estimate.prompt_s, prefill_work)
    busy_share = min(1.0, prefill_busy_share(deployed, estimate))
    prefill_gpu_w = busy_share * busy_gpu_w + (1.0 - busy_share) * gpu.idle_w
    return decode_w + prefill_gpu_w * arranged.prefill.gpus * arranged.prefill_workers


def _busy_w(
    deployed: Deployment, arrangement: Arrangement, seconds: float, work: Iteration
) -> float:
    """Return the power (W) of a GPU whose replica does ``work`` in ``seconds``."""
    shape = replace(deployed.shape, encoder=None)  # without images
    used = load(operator_graph(shape, arrangement), deployed.gpu, seconds, work)
    return float(watts(power_model(deployed.gpu), deployed.gpu, used))
