"""Correct estimates by the user's own measurements, and propose the next measurement.

A measurement has a defect if its run shows that its times may mislead, for example because requests
failed. Each defect lowers its weight. The weights are assumed: no published data says how much a
defective run misleads.
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
LEAST_ROUNDS = 3.0  # completed requests per request in flight; with fewer, the queue is not steady
MOST_WAIT = 0.5  # share of a request's time before its first token; above it, requests mostly wait
BUSY_REQUESTS = 8.0  # requests in flight; above it, such waiting is a queue, not a long prompt
TOO_FAST = 0.4  # measured over estimated TTFT; below it, prompts were probably cached
LONG_PROMPT = 512  # tokens; only in longer prompts does a cached part show in TTFT
WEIGHT_WITH_DEFECT = 0.25
WEIGHT_IF_ASSUMED = 0.5  # of a measurement whose engine, version or statistic is assumed


@dataclass(frozen=True, slots=True)
class Defect:
    """A defect of a measurement; with ``weight`` 0 the measurement is not used."""

    name: str  # failed, few, unsteady, capped, unstated or prefix
    words: str
    weight: float = WEIGHT_WITH_DEFECT  # factor on the weight of the measurement


def defects(row: Mapping[str, Any], concurrency: float) -> Iterator[Defect]:
    """Yield the defects that a measured row shows; ``concurrency`` is its requests in flight.

    A fact that the row does not state (NaN) shows no defect.
    """
    completed, failed = _number(row, "completed"), _number(row, "failed")
    failed_share = 0.0
    if failed > 0 and failed + completed > 0:
        failed_share = failed / (failed + completed)
    if failed_share > FEW_FAILED:
        weight = 0.0 if failed_share > MANY_FAILED else WEIGHT_WITH_DEFECT
        yield Defect("failed", f"{failed_share:.0%} of its requests failed", weight)
    if completed < FEW_REQUESTS:
        yield Defect("few", f"it has only {completed:.0f} requests")
    elif completed < LEAST_ROUNDS * concurrency:
        rounds = f"{completed:.0f} requests with {concurrency:.0f} in flight"
        yield Defect("unsteady", f"its queue is not steady: {rounds}")
    if assumed := row.get("assumed"):
        words = f"it does not state all facts. Assumed: {assumed}"
        yield Defect("unstated", words, WEIGHT_IF_ASSUMED)
    batch_limit = _number(row, "max_num_seqs")
    wait_share = _number(row, "ttft_ms") / _number(row, "e2e_ms")
    if batch_limit < concurrency:
        yield Defect("capped", f"its batch is capped at {batch_limit:.0f}")
    elif wait_share > MOST_WAIT and concurrency > BUSY_REQUESTS:
        words = f"requests wait {wait_share:.0%} of their time, as behind a capped batch or memory"
        yield Defect("capped", words)


def _number(row: Mapping[str, Any], name: str) -> float:
    """Return the number in a column; NaN without one."""
    value = finite_number(row.get(name))
    return math.nan if value is None else value


MOST_ROWS = 400  # measurements that are used; of more, an even selection
TIME_COLUMNS = {  # columns of a time, in ms
    "ttft_s": ("ttft_ms", "median_ttft_ms", "mean_ttft_ms"),
    "tbt_s": ("tbt_ms", "tpot_ms", "itl_ms", "median_tpot_ms", "mean_tpot_ms", "median_itl_ms"),
}


@dataclass(frozen=True, slots=True)
class Measurement:
    """A measured deployment with its times."""

    deployment: Deployment
    ttft_s: float  # nan: not measured
    tbt_s: float  # nan: not measured
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


def measurement(row: Mapping[str, Any], source: str, user_facts: UserFacts) -> Measurement:
    """Return the measurement in a row of the file ``source``.

    The row has the columns of a deployment (see ``deployment``), and ttft_ms or tbt_ms. Raise
    PlannerError if it has no time, or if a field is invalid.
    """
    times_s = {name: _time(row, names) for name, names in TIME_COLUMNS.items()}
    if all(math.isnan(value) for value in times_s.values()):
        raise PlannerError("a measured row needs ttft_ms or tbt_ms (tpot_ms). Give one.")
    described = deployment(row, user_facts)
    found_defects = tuple(defects(row, described.concurrency))
    return Measurement(described, times_s["ttft_s"], times_s["tbt_s"], source, found_defects)


def _time(row: Mapping[str, Any], names: tuple[str, ...]) -> float:
    """Return the time (s) in the first column of ``names`` that the row has; nan if none."""
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
    """Return the measurements in the rows of the file ``source``, and a reason for each other row.

    A row that is a text states why it cannot be read. Raise PlannerError if no row is usable.
    """
    usable: list[Measurement] = []
    reasons: list[str] = []
    for number, row in enumerate(rows, 1):
        try:
            if isinstance(row, str):
                raise PlannerError(row)
            # The row may state its number in a file with other kinds of rows.
            row_number = int(row.get("row", number))
            usable.append(replace(measurement(row, source, user_facts), row=row_number))
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
    notes: tuple[str, ...]  # why other measurements are not in use, or weigh less


def corrections_from(
    measured_rows: Sequence[Measurement], notes: Sequence[str], fit: EstimateFit
) -> MeasuredCorrections | None:
    """Return the corrections that measurements give; None if no measurement has an estimate.

    Repeated measurements count once. A measurement with a defect has less weight, or none. All
    measurements of a deployment weigh less if they predict each other no better than the estimate
    does. ``notes`` are sentences on measurements that were left out before.
    """
    sentences = list(notes)
    with_estimates = _with_estimates(_distinct(measured_rows, sentences), fit, sentences)
    if not with_estimates:
        return None
    corrections = {name: _learn(name, with_estimates, fit, sentences) for name in ("tbt", "ttft")}
    rows = tuple(row for row, _ in with_estimates)
    return MeasuredCorrections(Times(**corrections), rows, tuple(sentences))


def _learn(
    name: str,
    with_estimates: Sequence[tuple[Measurement, Estimate]],
    fit: EstimateFit,
    sentences: list[str],
) -> LearnedCorrections:
    """Return the corrections of ``name`` (tbt or ttft) from measurements and their estimates.

    Rows without this time do not count. ``sentences`` gets one on each outlier, and on each pair of
    rows that contradict each other.
    """
    rows, times_s, ratios = [], [], []  # ratios: measured time over estimate
    for row, estimate in with_estimates:
        time_s = getattr(row, f"{name}_s")
        ratio = time_s / getattr(estimate, f"{name}_s")
        if np.isfinite(np.log(ratio)):
            rows.append(row)
            times_s.append(time_s)
            ratios.append(ratio)
    log_errors = np.log(np.array(ratios))
    traits = traits_of([row.deployment for row in rows])
    likeness = fit.alike[name].likeness  # how errors of similar deployments correlate
    trust = np.array([row.weight for row in rows])
    learnt = learn_corrections(likeness, traits, log_errors, trust=trust)
    for label, weight in learnt.outlier_weights.items():
        first_row = int(np.flatnonzero(traits.labels["deployment"] == label)[0])
        outlier = rows[first_row].deployment
        sentences.append(
            f"Measured {name.upper()} of {outlier.shape.name} on {outlier.gpu.name} has a "
            f"weight of {weight:.0%}: its rows differ by more than the error of the estimate."
        )
    for i, j in contradictions(likeness, traits, log_errors):
        times_ms = (1e3 * times_s[i], 1e3 * times_s[j])
        sentences.append(_contradiction(name, rows[i].deployment, times_ms, (ratios[i], ratios[j])))
    return learnt


def _contradiction(
    name: str, deployed: Deployment, times_ms: Sequence[float], shares: Sequence[float]
) -> str:
    """Return the sentence on two contradicting times, and their shares of the estimate."""
    (first_ms, second_ms), (first_share, second_share) = times_ms, shares
    return (
        f"Measured {name.upper()} of {deployed.shape.name} on {deployed.gpu.name} "
        f"contradicts itself: {first_ms:,.4g} and {second_ms:,.4g} ms ({first_share:.2f} "
        f"and {second_share:.2f} of the estimate) with {deployed.concurrency:,.0f} in "
        f"flight, {deployed.isl:,.0f} tokens in and {deployed.osl:,.0f} out. If these are "
        "two deployments, name the difference (engine version, arrangement, speculative "
        "decoding). Until then they do not change its error."
    )


def _with_estimates(
    rows: list[Measurement], fit: EstimateFit, sentences: list[str]
) -> list[tuple[Measurement, Estimate]]:
    """Return measurements that have an estimate and a weight above 0, each with its estimate.

    At most MOST_ROWS are returned. A cached prefix is added to their defects. ``sentences`` gets a
    sentence on the selection, and on each row that is left out or weighs less.
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
        row = _with_cached_prefix(row, answer)
        defect_words = "; ".join(defect.words for defect in row.defects)
        if not row.weight:
            sentences.append(f"{row.place} is not used: {defect_words}.")
            continue
        if defect_words:
            sentences.append(f"{row.place} weighs less: {defect_words}.")
        usable.append((row, answer))
    return usable


def _with_cached_prefix(row: Measurement, estimate: Estimate) -> Measurement:
    """Return a measurement with a defect if its prompts are too fast for its estimate."""
    share = row.ttft_s / estimate.ttft_s
    if not (row.deployment.isl >= LONG_PROMPT and share < TOO_FAST):
        return row
    words = f"its TTFT is {share:.0%} of the estimate, as with cached prompts"
    return replace(row, defects=(*row.defects, Defect("prefix", words)))


def _distinct(rows: Sequence[Measurement], sentences: list[str]) -> list[Measurement]:
    """Return the measurements without repeats; ``sentences`` gets a sentence for each repeat."""
    traits = traits_of([row.deployment for row in rows])
    first_of_key: dict[Any, int] = {}  # index of the first row with this deployment and times
    distinct = []
    for i, row in enumerate(rows):
        labels = tuple(str(values[i]) for values in traits.labels.values())
        times_s = round(row.ttft_s, 9), round(row.tbt_s, 9)
        key = labels, tuple(traits.load[i]), str(times_s)  # as text, NaN equals NaN
        first = first_of_key.setdefault(key, i)
        if first == i:
            distinct.append(row)
        else:
            sentences.append(f"{row.place} counts once: it is the same as {rows[first].place}.")
    return distinct


@dataclass(frozen=True, slots=True)
class Change:
    """How measurements correct the estimate of one deployment.

    An error is relative: half of the true values are within the first number of the estimate, and
    nine of ten within the second.
    """

    tbt: float  # factor on TBT
    ttft: float  # factor on TTFT
    tbt_error: tuple[float, float]
    ttft_error: tuple[float, float]
    rows: int  # measurements of the same deployment
    alike: int  # measurements of other deployments


def changes(
    measurements: MeasuredCorrections | None, deployments: Sequence[Deployment], fit: EstimateFit
) -> list[Change]:
    """Return how measurements (None: not at all) correct the estimate of each deployment."""
    traits = traits_of(deployments)
    factors, errors = {}, {}  # by quantity, then by deployment
    for name in ("tbt", "ttft"):
        model = fit.alike[name]
        if measurements:
            learnt = getattr(measurements.times, name)
        else:
            no_rows = traits.take(np.zeros(0, np.int64))
            learnt = learn_corrections(model.likeness, no_rows, np.zeros(0))
        correction = learnt.at(traits)
        factors[name] = np.exp(correction.shift).tolist()  # the shift is of the logarithm
        half, nine_of_ten = model.stated.of_shift(traits.split, correction)
        errors[name] = list(zip(half.tolist(), nine_of_ten.tolist(), strict=True))
    # Count the measurements of the same deployment, and those of others.
    measured_rows = measurements.rows if measurements else ()
    measured_names = traits_of([row.deployment for row in measured_rows]).labels["deployment"]
    names = traits.labels["deployment"].tolist()
    own_rows = [int((measured_names == name).sum()) for name in names]
    other_rows = [measured_names.size - rows for rows in own_rows]
    columns = factors["tbt"], factors["ttft"], errors["tbt"], errors["ttft"], own_rows, other_rows
    return [Change(*change) for change in zip(*columns, strict=True)]


def corrected_estimate(estimate: Estimate, change: Change, osl: float) -> Estimate:
    """Return ``estimate`` with ``change`` applied, for requests of ``osl`` output tokens."""
    ttft_s, tbt_s = estimate.ttft_s * change.ttft, estimate.tbt_s * change.tbt
    request_s = estimate.ttft_s + (osl - 1.0) * estimate.tbt_s
    corrected_request_s = ttft_s + (osl - 1.0) * tbt_s
    tokens_per_s = estimate.tokens_per_s * request_s / corrected_request_s
    return replace(estimate, ttft_s=ttft_s, tbt_s=tbt_s, tokens_per_s=tokens_per_s)


CANDIDATE_LOADS = (1.0, 4.0, 16.0, 64.0, 256.0)  # candidate concurrencies of the next measurement


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

    The loads are CANDIDATE_LOADS and the concurrency of ``deployment``. The variance after a
    measurement does not depend on its result, so it is known in advance. ``measurements`` are those
    made so far, and ``model`` is the name under which the engine serves the model.
    """
    loads = sorted({*CANDIDATE_LOADS, deployment.concurrency})
    traits = traits_of([replace(deployment, concurrency=load) for load in loads])
    error_now, errors_after = [], []  # [quantity], [quantity, measured load]
    for name in ("ttft", "tbt"):
        correction_model = fit.alike[name]
        learnt = getattr(measurements.times, name) if measurements else None
        rows = learnt.rows if learnt else traits.take(np.zeros(0, np.int64))
        error_now.append(_mean_error(correction_model, rows, traits))
        rows_after = [_with_two(rows, traits, i) for i in range(traits.size)]  # by measured load
        errors_after.append([_mean_error(correction_model, after, traits) for after in rows_after])
    remaining_share = np.array(errors_after) / np.array(error_now)[:, None]
    best = int(remaining_share.sum(axis=0).argmin())  # over both quantities
    users, isl, osl = round(loads[best]), round(deployment.isl), round(deployment.osl)
    ttft_now, tbt_now = error_now
    ttft_after, tbt_after = (errors[best] for errors in errors_after)
    commands = commands_of(model, deployment.engine, users, isl, osl)
    return NextMeasurement(users, isl, osl, (ttft_now, tbt_now), (ttft_after, tbt_after), commands)


def _with_two(rows: Traits, others: Traits, i: int) -> Traits:
    """Return ``rows`` with row ``i`` of ``others`` appended twice.

    A stated error ignores the row that reduces it most, so that one more row would change nothing.
    """
    more = others.take(np.array([i, i]))
    labels = {key: np.append(rows.labels[key], more.labels[key]) for key in more.labels}
    return Traits(labels, np.vstack([rows.load, more.load]), np.append(rows.split, more.split))


def _mean_error(model: CorrectionModel, rows: Traits, others: Traits) -> float:
    """Return the median error of an estimate once ``rows`` are measured, mean over ``others``.

    An error does not depend on the result of a measurement, so results of 0 are used.
    """
    learnt = learn_corrections(model.likeness, rows, np.zeros(rows.size), judged=False)
    median_errors, _ = model.stated.errors(others.split, learnt.at(others).stated)
    return float(median_errors.mean())


PORTS = {"sglang": 30000}  # default ports of engines; others: 8000


def commands_of(model: str, engine: str, users: int, isl: int, osl: int) -> tuple[str, str]:
    """Return commands that measure ``users`` requests in flight: vLLM's benchmark and GuideLLM's.

    Each of the ``users`` sends ten requests, so that the first, simultaneous ones are a tenth.
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
