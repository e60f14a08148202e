"""Correct estimates by the user's own measurements, and propose the next measurement.

A defect of a measurement lowers its weight. The weights are assumed: no published data says how
much a defective run misleads.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from planner.errors import EXPECTED, PlannerError
from planner.inputs import catalogue
from planner.inputs.catalogue.estimate_calibration import CorrectionModel, EstimateFit, efficiencies
from planner.inputs.estimates.deployment_rows import deployment
from planner.inputs.numbers import finite_number
from planner.inputs.scenario.user_facts import NO_USER_FACTS, UserFacts
from simulation.arrays import FloatArray
from simulation.performance.estimate.defaults import Deployment
from simulation.performance.estimate.estimate import (
    Estimate,
    RefusedEstimate,
    estimate_rows,
)
from simulation.performance.estimate.measured_corrections import (
    LearnedCorrections,
    Times,
    Traits,
    contradictions,
    learn_corrections,
    traits_of,
)

FEW_FAILED, MANY_FAILED = 0.05, 0.2  # shares of failed requests
FEW_REQUESTS = 20  # completed requests of a run
ROUNDS = 3.0  # completed requests per request in flight, from which a queue can be steady
WAITS = 0.5  # share of a request's time before its first token, from which it mostly waits
BUSY = 8.0  # requests in flight from which such waiting is a queue, not a long prompt
TOO_FAST = 0.4  # measured over estimated TTFT, below which prompts were probably cached
LONG_PROMPT = 512  # tokens from which a cached prompt shows in TTFT
LESS = 0.25  # weight of a measurement with a defect
UNSTATED = 0.5  # weight of a measurement whose engine, version or statistic is assumed


@dataclass(frozen=True, slots=True)
class Defect:
    """A defect of a measurement; with ``weight`` 0 the measurement is not used."""

    name: str  # failed, few, unsteady, capped, unstated or prefix
    words: str
    weight: float = LESS


def defects(row: Mapping[str, Any], concurrency: float) -> Iterator[Defect]:
    """Yield the defects that the columns of a measured row show."""
    completed, failed = (_number(row, name) for name in ("completed", "failed"))
    share = failed / (failed + completed) if failed > 0 and failed + completed > 0 else 0.0
    if share > FEW_FAILED:
        weight = 0.0 if share > MANY_FAILED else LESS
        yield Defect("failed", f"{share:.0%} of its requests failed", weight)
    if completed < FEW_REQUESTS:
        yield Defect("few", f"it has only {completed:.0f} requests")
    elif completed < ROUNDS * concurrency:
        yield Defect(
            "unsteady",
            f"its queue is not steady: {completed:.0f} requests with {concurrency:.0f} in flight",
        )
    if assumed := row.get("assumed"):
        yield Defect("unstated", f"it does not state all facts. Assumed: {assumed}", UNSTATED)
    limit = _number(row, "max_num_seqs")
    wait = _number(row, "ttft_ms") / _number(row, "e2e_ms")
    if limit < concurrency:
        yield Defect("capped", f"its batch is capped at {limit:.0f}")
    elif wait > WAITS and concurrency > BUSY:
        yield Defect(
            "capped", f"requests wait {wait:.0%} of their time, as behind a capped batch or memory"
        )


def prefix_hits(measured_s: float, estimated_s: float, isl: float) -> Iterator[Defect]:
    """Yield a defect if the first token came faster than a computed prompt allows.

    Such prompts probably came from the prefix cache.
    """
    if isl >= LONG_PROMPT and measured_s < TOO_FAST * estimated_s:
        share = measured_s / estimated_s
        yield Defect("prefix", f"its TTFT is {share:.0%} of the estimate, as with cached prompts")


def _number(row: Mapping[str, Any], name: str) -> float:
    """Return the number in a column; NaN without one."""
    value = finite_number(row.get(name))
    return math.nan if value is None else value


MOST_ROWS = 400  # most measurements used; of more, an even selection
TIMES = {
    "ttft_s": ("ttft_ms", "median_ttft_ms", "mean_ttft_ms"),
    "tbt_s": ("tbt_ms", "tpot_ms", "itl_ms", "median_tpot_ms", "mean_tpot_ms", "median_itl_ms"),
}


@dataclass(frozen=True, slots=True)
class Measurement:
    """A measured deployment with its times in seconds; nan: not measured."""

    deployment: Deployment
    ttft_s: float
    tbt_s: float
    source: str  # the file
    defects: tuple[Defect, ...] = ()
    row: int = 1  # in the file

    @property
    def place(self) -> str:
        """Return the file and the row in it."""
        return f"{self.source}, row {self.row}"

    @property
    def weight(self) -> float:
        """Return the weight of the measurement after its defects, from 0 (not used) to 1."""
        return math.prod(defect.weight for defect in self.defects)


def measurement(
    row: Mapping[str, Any], source: str, user_facts: UserFacts = NO_USER_FACTS
) -> Measurement:
    """Return the measurement of a row: the columns of an estimate, and ttft_ms or tbt_ms.

    Raises PlannerError if the row has no time, or if a field is invalid.
    """
    times_s = {name: _time(row, names) for name, names in TIMES.items()}
    if all(math.isnan(value) for value in times_s.values()):
        raise PlannerError("a measured row needs ttft_ms or tbt_ms (tpot_ms). Give one.")
    described = deployment(row, user_facts)
    found_defects = tuple(defects(row, described.concurrency))
    return Measurement(described, times_s["ttft_s"], times_s["tbt_s"], source, found_defects)


def _time(row: Mapping[str, Any], names: tuple[str, ...]) -> float:
    """Return the first time in ``names`` of a row, in seconds; nan: the row has none."""
    for name in names:
        value = row.get(name)
        if value is None or value == "":
            continue
        seconds = (finite_number(value) or 0.0) / 1e3
        if not 0 < seconds < 1e6:
            raise PlannerError(f"{name} is {value!r}. Give milliseconds above 0.")
        return seconds
    return math.nan


def measurements(
    rows: Sequence[Mapping[str, Any] | str], source: str, user_facts: UserFacts = NO_USER_FACTS
) -> tuple[list[Measurement], list[str]]:
    """Return the usable measurements, and a reason for each other row.

    Raises PlannerError if no row is usable.
    """
    usable: list[Measurement] = []
    reasons: list[str] = []
    for number, row in enumerate(rows, 1):
        try:
            if isinstance(row, str):
                raise PlannerError(row)
            in_file = row.get("row", number)  # rows before it may not be of a deployment
            usable.append(replace(measurement(row, source, user_facts), row=int(in_file)))
        except EXPECTED as problem:
            reasons.append(f"{source}, row {number}: {problem}")
    if rows and not usable:
        raise PlannerError(reasons[0])
    return usable, reasons


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredCorrections:
    """Corrections of TTFT and TBT estimates, learnt from the user's measurements."""

    times: Times
    rows: tuple[Measurement, ...]  # measurements in use
    notes: tuple[str, ...]  # reasons why others are not in use


def corrections_from(
    measured_rows: Sequence[Measurement], notes: Sequence[str], fit: EstimateFit
) -> MeasuredCorrections | None:
    """Learn corrections from measurements; None if no measurement has a comparable estimate.

    Repeated measurements count once. A measurement with a defect has less weight, or none. All
    measurements of a deployment weigh less if they predict each other no better than the estimate
    does.
    """
    sentences = list(notes)
    usable = _comparable(_distinct(measured_rows, sentences), fit, sentences)
    if not usable:
        return None
    rows = tuple(row for row, _ in usable)
    traits = traits_of([row.deployment for row in rows])
    trust = np.array([row.weight for row in rows])
    corrections = {}
    for name in ("tbt", "ttft"):
        measured = np.array([getattr(row, f"{name}_s") for row in rows])
        estimated = np.array([getattr(estimate, f"{name}_s") for _, estimate in usable])
        log_error = np.log(measured / estimated)
        finite = np.isfinite(log_error)
        corrections[name] = learn_corrections(
            fit.alike[name].likeness, traits.take(finite), log_error[finite],
            trust=trust[finite],
        )  # fmt: skip
        for group, belief in corrections[name].outlier_weights.items():
            of_group = np.flatnonzero(traits.labels["deployment"] == group)
            first = rows[int(of_group[0])].deployment
            sentences.append(
                f"Measured {name.upper()} of {first.shape.name} on {first.gpu.name} has a "
                f"weight of {belief:.0%}: its rows differ by more than the error of the estimate."
            )
        measured_here = [row for row, used in zip(rows, finite, strict=True) if used]
        pairs = contradictions(fit.alike[name].likeness, traits.take(finite), log_error[finite])
        sentences += [
            _contradiction_sentence(
                name, measured_here[i], measured_here[j], log_error[finite][[i, j]]
            )
            for i, j in pairs
        ]
    return MeasuredCorrections(Times(**corrections), rows, tuple(sentences))


def _comparable(
    rows: list[Measurement], fit: EstimateFit, sentences: list[str]
) -> list[tuple[Measurement, Estimate]]:
    """Return the measurements that have an estimate and a weight above 0, each with its estimate.

    At most MOST_ROWS are returned, each with all its defects. ``sentences`` gets a sentence about
    each other measurement.
    """
    if len(rows) > MOST_ROWS:
        sentences.append(f"{MOST_ROWS} of {len(rows):,} measured rows are used, spread evenly.")
        rows = [rows[i] for i in np.linspace(0, len(rows) - 1, MOST_ROWS).astype(int)]
    answers = estimate_rows([row.deployment for row in rows], fit.calibration, efficiencies())
    usable = []
    for row, answer in zip(rows, answers, strict=True):
        if isinstance(answer, RefusedEstimate):
            sentences.append(f"{row.place} is not used: {answer.reason}")
            continue
        cached_prefix = prefix_hits(row.ttft_s, answer.ttft_s, row.deployment.isl)
        row = replace(row, defects=(*row.defects, *cached_prefix))
        defect_words = "; ".join(defect.words for defect in row.defects)
        if not row.weight:
            sentences.append(f"{row.place} is not used: {defect_words}.")
            continue
        if defect_words:
            sentences.append(f"{row.place} weighs less: {defect_words}.")
        usable.append((row, answer))
    return usable


def _distinct(rows: Sequence[Measurement], sentences: list[str]) -> list[Measurement]:
    """Return measurements that differ in deployment, load or times.

    Append a sentence for each repeat to ``sentences``.
    """
    names = traits_of([row.deployment for row in rows])
    seen: dict[Any, int] = {}
    distinct = []
    for i, row in enumerate(rows):
        labels = tuple(str(values[i]) for values in names.labels.values())
        times_s = round(row.ttft_s, 9), round(row.tbt_s, 9)
        first = seen.setdefault((labels, tuple(names.load[i]), str(times_s)), i)
        if first == i:
            distinct.append(row)
        else:
            sentences.append(f"{row.place} counts once: it is the same as {rows[first].place}.")
    return distinct


def _contradiction_sentence(
    name: str, first: Measurement, second: Measurement, log_ratios: FloatArray
) -> str:
    """Return a sentence on two measurements of one deployment and load that disagree.

    ``log_ratios`` are the logarithms of both over the estimate.
    """
    first_ms, second_ms = (getattr(row, f"{name}_s") * 1e3 for row in (first, second))
    where = first.deployment
    share, other_share = np.exp(log_ratios)
    return (
        f"Measured {name.upper()} of {where.shape.name} on {where.gpu.name} contradicts itself: "
        f"{first_ms:,.4g} and {second_ms:,.4g} ms ({share:.2f} and {other_share:.2f} of the "
        f"estimate) with {where.concurrency:,.0f} in flight, {where.isl:,.0f} tokens in and "
        f"{where.osl:,.0f} out. If these are two deployments, name the difference (engine version, "
        "arrangement, speculative decoding). Until then they do not change its error."
    )


@dataclass(frozen=True, slots=True)
class Change:
    """How measurements correct the estimate of one deployment."""

    tbt: float  # factor on TBT
    ttft: float  # factor on TTFT
    tbt_error: tuple[float, float]  # relative: half of the values, nine of ten within
    ttft_error: tuple[float, float]
    rows: int  # measurements of the same deployment
    alike: int  # measurements of other deployments


def changes(
    measurements: MeasuredCorrections | None, deployments: Sequence[Deployment], fit: EstimateFit
) -> list[Change]:
    """Return how measurements correct each deployment's estimate, with errors and row counts.

    Without measurements, factors are 1 and the errors are those of the estimate.
    """
    traits = traits_of(deployments)
    learnt = {
        name: getattr(measurements.times, name)
        if measurements
        else learn_corrections(
            fit.alike[name].likeness, traits.take(np.zeros(0, np.int64)), np.zeros(0)
        )
        for name in ("tbt", "ttft")
    }
    tbt, ttft = (_factors_and_errors(name, learnt[name], traits, fit) for name in learnt)
    measured_rows = measurements.rows if measurements else ()
    measured = traits_of([row.deployment for row in measured_rows]).labels["deployment"]
    same = [int((measured == name).sum()) for name in traits.labels["deployment"].tolist()]
    return [
        Change(tbt_factor, ttft_factor, tbt_error, ttft_error, rows, measured.size - rows)
        for (tbt_factor, tbt_error), (ttft_factor, ttft_error), rows in zip(
            tbt, ttft, same, strict=True
        )
    ]


def _factors_and_errors(
    name: str, learnt: LearnedCorrections, traits: Traits, fit: EstimateFit
) -> list[tuple[float, tuple[float, float]]]:
    """Return each deployment's factor on a time, and its errors.

    ``name`` is "tbt" or "ttft". The errors are relative: half of the values are within the first,
    nine of ten within the second.
    """
    shift = learnt.at(traits)
    median, nine = fit.alike[name].stated.of_shift(traits.split, shift)
    errors = zip(median.tolist(), nine.tolist(), strict=True)
    return list(zip(np.exp(shift.shift).tolist(), errors, strict=True))


def corrected_estimate(estimate: Estimate, change: Change, osl: float) -> Estimate:
    """Return ``estimate`` after ``change``; throughput falls as ``osl`` tokens take longer."""
    ttft, tbt = estimate.ttft_s * change.ttft, estimate.tbt_s * change.tbt
    seconds = estimate.ttft_s + (osl - 1.0) * estimate.tbt_s
    tokens_per_s = estimate.tokens_per_s * seconds / (ttft + (osl - 1.0) * tbt)
    return replace(estimate, ttft_s=ttft, tbt_s=tbt, tokens_per_s=tokens_per_s)


LOADS = (1.0, 4.0, 16.0, 64.0, 256.0)  # candidate concurrencies of the next measurement


@dataclass(frozen=True, slots=True)
class NextMeasurement:
    """The measurement that would reduce the errors of a deployment's estimates most."""

    concurrency: int
    isl: int
    osl: int
    error: tuple[float, float]  # median errors of TTFT and TBT now, mean over the loads
    after: tuple[float, float]  # expected errors after the measurement was made twice
    commands: tuple[str, str]  # vLLM's benchmark and GuideLLM's


def next_measurement(
    measurements: MeasuredCorrections | None, deployment: Deployment, model: str, fit: EstimateFit
) -> NextMeasurement:
    """Return the measurement that reduces the mean error over all loads most.

    The loads are LOADS and that of ``deployment``. The variance after a measurement does not depend
    on its result, so it is known in advance. ``model`` is the name under which the engine serves
    the model.
    """
    loads = sorted({*LOADS, deployment.concurrency})
    traits = traits_of([replace(deployment, concurrency=load) for load in loads])
    error_now, after = [], []
    for name in ("ttft", "tbt"):
        correction_model = fit.alike[name]
        learnt = getattr(measurements.times, name) if measurements else None
        rows = learnt.rows if learnt else traits.take(np.zeros(0, np.int64))
        error_now.append(_mean_error(correction_model, rows, traits))
        # No single row narrows an error, so each measurement is made twice.
        measured_twice = (_with_row_twice(rows, traits, i) for i in range(traits.size))
        after.append([_mean_error(correction_model, more, traits) for more in measured_twice])
    remaining_share = np.array(after) / np.array(error_now)[:, None]  # [quantities, loads]
    best = int(remaining_share.sum(axis=0).argmin())
    users, isl, osl = round(loads[best]), round(deployment.isl), round(deployment.osl)
    return NextMeasurement(
        users, isl, osl, (error_now[0], error_now[1]), (after[0][best], after[1][best]),
        commands_of(model, deployment.engine, users, isl, osl),
    )  # fmt: skip


def _with_row_twice(rows: Traits, others: Traits, which: int) -> Traits:
    """Return ``rows`` with row ``which`` of ``others`` appended twice, as two measurements."""
    more = others.take(np.array([which, which]))
    labels = {name: np.append(rows.labels[name], more.labels[name]) for name in more.labels}
    return Traits(labels, np.vstack([rows.load, more.load]), np.append(rows.split, more.split))


def _mean_error(model: CorrectionModel, rows: Traits, others: Traits) -> float:
    """Return the mean of the median errors of ``others`` if ``rows`` are measured.

    An error does not depend on the result of a measurement, so results of 0 are used.
    """
    learnt = learn_corrections(model.likeness, rows, np.zeros(rows.size), judged=False)
    median_errors, _ = model.stated.errors(others.split, learnt.at(others).stated)
    return float(median_errors.mean())


PORTS = {"sglang": 30000}  # default ports of engines; others: 8000


def commands_of(model: str, engine: str, users: int, isl: int, osl: int) -> tuple[str, str]:
    """Return commands that measure one load: vLLM's benchmark and GuideLLM's.

    They run ten rounds, so that the first wave of simultaneous requests is a tenth of all.
    """
    prompts, model = max(20, 10 * users), catalogue.repository(model)
    url = f"http://localhost:{PORTS.get(engine, 8000)}"
    return (
        f"vllm bench serve --base-url {url} --model {model} --dataset-name random "
        f"--random-input-len {isl} --random-output-len {osl} --ignore-eos "
        f"--max-concurrency {users} --num-prompts {prompts} "
        f"--save-result --result-filename c{users}.json",
        f"guidellm benchmark --target {url} --model {model} --rate-type concurrent "
        f'--rate {users} --max-requests {prompts} --data "prompt_tokens={isl},output_tokens={osl}" '
        f"--output-path c{users}.json",
    )
