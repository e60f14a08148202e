"""Estimates of deployments: what CLI, REST and pages call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from planner.catalogue.efficiency import efficiencies
from planner.catalogue.estimating import EstimateFit, estimate_fit
from planner.catalogue.power import power_model
from planner.errors import EXPECTED, PlannerError
from planner.estimates.arrangements import wider_than_pays
from planner.estimates.at_rate import AtRate, asked_for, at_rate_words, built_in_beside
from planner.estimates.estimating import DRAFTING, deployment, named_fields
from planner.estimates.own import Change, Own, changes, moved, next_measurement
from planner.estimates.rows import read_rows
from planner.scenario.known import Known
from planner.selectors.hardware import own_hardware
from planner.selectors.own import joined, own_kept, own_rows
from simulation.performance.estimate.errors import Where, words
from simulation.performance.estimate.estimate import Deployment, Estimate, Refused, estimate_rows
from simulation.performance.graph import operator_graph
from simulation.performance.power import load, watts

BUSY = 0.98  # share of their time from which workers count as always busy
Row = Mapping[str, Any]
Answer = dict[str, Any]

BASIS = {
    "seen": "measured rows of this model on this GPU type; the fit had seen them",
    "version": "measured rows of this model on this GPU type, by a fit that had not seen the "
    "engine's version, as this one's was not measured",
    "model": "models that the fit had not seen, as this one",
    "gpu": "GPU types that the fit had not seen, as this one",
    "both": "models on GPU types, neither of which the fit had seen, as here",
}
# What a fit had not seen whose errors are shown beside each other.
LEFT_OUT = {
    "seen": "nothing",
    "version": "the engine's version",
    "source": "who measured",
    "model": "the model",
    "gpu": "the GPU type",
    "both": "model and GPU type",
}


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """Which measurements of one's own move estimates: given with the question, or kept here."""

    rows: Sequence[Row | str] = ()  # with the columns of an estimate beside ttft_ms and tbt_ms
    name: str = "measured"  # of those rows
    kept: bool = True  # use what was uploaded too

    def own(self, known: Known) -> Own | None:
        given = own_rows(self.rows, self.name, known) if self.rows else None
        return joined(given, own_kept(known) if self.kept else None)


KEPT = Measured()


def measured_in(file: str | None, *, kept: bool) -> Measured:
    """Rows of a table file, where one is named, beside what was uploaded where ``kept`` says so."""
    return Measured(read_rows(file), Path(file).name, kept) if file else Measured(kept=kept)


def estimate_one(row: Row, measured: Measured = KEPT) -> Answer:
    """The estimate of one deployment, by the keys of the contract (interfaces.md).

    ``row`` holds names and numbers as ``bin/manage estimate`` takes them, with - or _. Raises
    PlannerError or SimulationError saying what is wrong, or why the deployment cannot be.
    """
    (answer,) = estimate_many([row], measured)
    if "refused" in answer:
        raise PlannerError(answer["refused"])
    fit, known = estimate_fit(), own_hardware()
    own, model = measured.own(known), str(named_fields(row)["model"])
    asked = dict(row) | {"concurrency": answer["concurrency"]}
    given = deployment(asked, known)
    where = replace(where_of(given), split=answer["mode"] == "disagg")
    return answer | {
        "next_measurement": asdict(next_measurement(own, given, model, fit)),
        "notes": list(own.notes) if own else [],
        "assumptions": [*answer["assumptions"], *wider_than_pays(given)],
        "left_out": _left_out(fit, where),
    }


def _left_out(fit: EstimateFit, where: Where) -> list[dict[str, Any]]:
    """Errors of measured deployments as this one, by what the fit that was scored had not seen."""
    cells = {basis: fit.errors[basis].of(where)[1] for basis in LEFT_OUT}
    return [{"what": LEFT_OUT[basis], **asdict(cell)} for basis, cell in cells.items()]


def estimate_sweep(
    row: Row, loads: Sequence[float], measured: Measured = KEPT
) -> list[tuple[float, Answer]]:
    """The estimates of one deployment at other numbers of requests in flight, where it has any.

    What the row leaves out, such as how many workers there are, stays as it is at the row's own
    concurrency: one deployment under more load, not another one for each load.
    """
    fit, known = estimate_fit(), own_hardware()
    given = deployment(row, known)
    (one,) = estimate_rows([given], fit.calibration, efficiencies())
    if isinstance(one, Refused):
        return []
    where = one.arranged
    fixed = replace(given, decode=where.decode, decode_workers=where.decode_workers)
    if where.split:
        fixed = replace(fixed, prefill=where.prefill, prefill_workers=where.prefill_workers)
    swept = [replace(fixed, concurrency=float(load)) for load in loads]
    found = estimate_rows(swept, fit.calibration, efficiencies())
    # The rows are of deployments as they were given: what was filled in above is not.
    asked = [replace(given, concurrency=float(load)) for load in loads]
    moves = _moves(measured.own(known), asked, fit)
    return [
        (load, _answer(at, answer, fit, move))
        for load, at, answer, move in zip(loads, swept, found, moves, strict=True)
        if not isinstance(answer, Refused)
    ]


def estimate_many(rows: Sequence[Row | str], measured: Measured = KEPT) -> list[Answer]:
    """One answer per row, in their order; {"refused": reason} where there is none.

    A string among the rows is the reason why that row could not be read.
    """
    fit, known = estimate_fit(), own_hardware()
    answers: list[Answer] = [{}] * len(rows)
    found: list[Deployment] = []
    rated: list[AtRate | None] = []
    places: list[int] = []
    own = measured.own(known)
    moved_by = replace(known, own=own.times if own else None)
    for index, row in enumerate(rows):
        try:
            if isinstance(row, str):
                raise PlannerError(row)
            given, at = asked_for(row, moved_by)
            found.append(given)
            rated.append(at)
            places.append(index)
        except EXPECTED as problem:
            answers[index] = {"refused": str(problem)}
    estimates = estimate_rows(found, fit.calibration, efficiencies())
    moves = _moves(own, found, fit)
    for index, given, at, one, move in zip(places, found, rated, estimates, moves, strict=True):
        if isinstance(one, Refused):
            answers[index] = _refused(one)
            continue
        answer = _answer(given, one, fit, move)
        answers[index] = answer if at is None else answer | at_rate_words(answer, at, given.osl)
    return answers


def estimate_file(path: Path | str, measured: Measured = KEPT) -> list[Answer]:
    """The answers to the rows of a table file, in their order."""
    return estimate_many(read_rows(path), measured)


def _moves(own: Own | None, given: Sequence[Deployment], fit: EstimateFit) -> list[Change | None]:
    """What the measurements make of each; None where they share nothing with it."""
    return [None] * len(given) if own is None else list(changes(own, given, fit))


def _refused(one: Refused) -> Answer:
    return {"refused": one.reason}


def _answer(
    given: Deployment, before: Estimate, fit: EstimateFit, change: Change | None = None
) -> Answer:
    split = before.arranged.split  # also where that is taken for what was given
    version = given.version and f"{given.engine} {given.version}"
    basis = fit.basis(given.shape.name, given.gpu.name, version)
    one = moved(before, change, given.osl) if change else before
    key, cell = fit.errors[basis].of(replace(where_of(given), split=split))
    known = {name: value for name, value in asdict(cell).items() if name != "rows"}
    error: dict[str, float] = dict(known)
    if change:  # rows of others may say less than what is known of all
        for name in ("ttft", "tbt"):
            half, nine = getattr(change, f"{name}_error")
            error[name] = min(known[name], half)
            error[f"{name}_90"] = min(known[f"{name}_90"], nine)
    power = power_w(given, one)
    return {
        "model": given.shape.name,
        "gpu": given.gpu.name,
        "mode": "disagg" if split else "agg",
        "ttft_ms": one.ttft_s * 1e3,
        "tbt_ms": one.tbt_s * 1e3,
        "tokens_per_s": one.tokens_per_s,
        "power_w": power,
        "j_per_token": power / one.tokens_per_s,
        "j_per_request": power / one.tokens_per_s * given.osl,
        "memory_gb": one.memory_bytes / 1e9,
        "gpus": one.gpus,
        "engine": given.engine,
        "concurrency": given.concurrency,
        "batch": one.batch,
        "profile": "roofline",
        "provenance": {
            "kind": "modelled",
            "source": "operators of the model, as fast as measured kernels of the GPU's family; "
            f"how serving differs from kernels was fitted to {fit.source}",
            "gpu": given.gpu.provenance.source,
            "power": power_model(given.gpu).provenance.source,
        },
        "expected_error": {
            **error,
            "basis": _basis(basis, change, words(key, cell.rows)),
            "model_checked": given.shape.name in fit.models,
            "gpu_checked": given.gpu.name in fit.gpus,
            "outside": [
                *fit.outside(
                    {"isl": given.isl, "osl": given.osl, "concurrency": given.concurrency}
                ),
                *_strange(given),
            ],
        },
        "assumptions": [*one.assumptions, *_held_back(given, one), *built_in_beside(given, one)],
        "own": _own_words(before, change, known),
    }


def where_of(given: Deployment) -> Where:
    """What the errors of its estimate go by."""
    drafts = given.shape.name.startswith(DRAFTING) and not given.drafted
    return Where(given.prefill is not None, given.concurrency, given.engine, drafts)


def _basis(basis: str, change: Change | None, measured: str) -> str:
    said = f"{BASIS[basis]}: {measured}"
    if change is None or not change.rows:
        return said
    rows = f"{change.rows} measured row{'s' if change.rows > 1 else ''} of this deployment"
    return f"{rows}; without them {said}"


def _own_words(
    before: Estimate, change: Change | None, error: Mapping[str, float]
) -> dict[str, Any] | None:
    """What one's own measurements changed; None where there are none."""
    if change is None:
        return None
    return {
        "rows": change.rows,
        "alike": change.alike,
        "ttft_factor": change.ttft,
        "tbt_factor": change.tbt,
        "ttft_ms_before": before.ttft_s * 1e3,
        "tbt_ms_before": before.tbt_s * 1e3,
        "tokens_per_s_before": before.tokens_per_s,
        "ttft_error_before": error["ttft"],
        "ttft_90_before": error["ttft_90"],
        "tbt_error_before": error["tbt"],
        "tbt_90_before": error["tbt_90"],
    }


def prefill_busy(given: Deployment, one: Estimate) -> float:
    """Of their time, what the prefill workers of a split deployment need for its prompts."""
    each = one.prompt_s / (one.arranged.prefill.attention_dp * one.arranged.prefill_workers)
    return one.tokens_per_s / given.osl * each


def _strange(given: Deployment) -> list[str]:
    """Errors are of GPU types whose family has measured kernels."""
    said = ["no deployment with LoRA adapters was measured"] if given.shape.adapters else []
    family = given.gpu.family
    if family in {entry.family for entry in efficiencies().entries}:
        return said
    return [
        *said,
        f"no kernel was measured on {given.gpu.name} or its family ({family or 'not named'}); "
        "those of another stand in, so expect more than this error",
    ]


def _held_back(given: Deployment, one: Estimate) -> list[str]:
    """What is served is bound by the prefill workers that were asked for."""
    if given.prefill_workers is None or prefill_busy(given, one) < BUSY:
        return []
    return ["prefill workers are busy all the time and bound what is served; the rest wait"]


def power_w(given: Deployment, one: Estimate) -> float:
    """Watts of all GPUs at the board, servers not included; by what each worker is doing."""
    gpu, where = given.gpu, one.arranged
    if gpu.tdp_w is None:
        return one.gpus * gpu.decode_w
    model = power_model(gpu)
    shape = replace(given.shape, encoder=None)
    context = one.batch * (given.isl + given.osl / 2.0)
    per_token = 0.0 if where.split else one.batch / given.osl  # prompts in an iteration
    decoding = load(
        operator_graph(shape, where.decode), gpu, one.tbt_s, one.batch, context,
        per_token * given.isl, per_token * given.isl**2 / 2.0,
    )  # fmt: skip
    total = float(watts(model, gpu, decoding)) * where.decode.gpus * where.decode_workers
    if not where.split:
        return total
    ranks = where.prefill.attention_dp
    reading = load(
        operator_graph(shape, where.prefill), gpu, one.prompt_s, 0.0, 0.0,
        ranks * given.isl, ranks * given.isl**2 / 2.0,
    )  # fmt: skip
    busy = min(1.0, prefill_busy(given, one))
    each = busy * float(watts(model, gpu, reading)) + (1.0 - busy) * gpu.idle_w
    return total + each * where.prefill.gpus * where.prefill_workers
