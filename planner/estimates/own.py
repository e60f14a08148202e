"""Measurements of one's own: what they say of estimates, and which one more would say most."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from planner import catalogue
from planner.catalogue.efficiency import efficiencies
from planner.catalogue.estimating import EstimateFit
from planner.errors import EXPECTED, PlannerError
from planner.estimates.estimating import deployment
from planner.scenario.known import NOTHING, Known
from simulation.arrays import FloatArray
from simulation.performance.estimate.estimate import Deployment, Estimate, Refused, estimate_rows
from simulation.performance.estimate.own import (
    Learnt,
    Times,
    Traits,
    contradictions,
    learn,
    traits_of,
)

MOST_ROWS = 400  # that move estimates; of more, those spread evenly over all
TIMES = {
    "ttft_s": ("ttft_ms", "median_ttft_ms", "mean_ttft_ms"),
    "tbt_s": ("tbt_ms", "tpot_ms", "itl_ms", "median_tpot_ms", "mean_tpot_ms", "median_itl_ms"),
}


@dataclass(frozen=True, slots=True)
class Measurement:
    """A deployment as it was served, with its times in seconds; nan where not measured."""

    deployment: Deployment
    ttft_s: float
    tbt_s: float
    source: str


def measurement(row: Mapping[str, Any], source: str, known: Known = NOTHING) -> Measurement:
    """Of a row with the columns of an estimate beside ttft_ms or tbt_ms; raises PlannerError."""
    times = {name: _time(row, names) for name, names in TIMES.items()}
    if all(math.isnan(value) for value in times.values()):
        raise PlannerError("a measured row needs ttft_ms or tbt_ms (tpot_ms); give one.")
    return Measurement(deployment(row, known), source=source, **times)


def _time(row: Mapping[str, Any], names: tuple[str, ...]) -> float:
    for name in names:
        value = row.get(name)
        if value is None or value == "":
            continue
        try:
            seconds = float(value) / 1e3
        except (TypeError, ValueError):
            seconds = 0.0
        if not 0 < seconds < 1e6:
            raise PlannerError(f"{name} is {value!r}; give milliseconds above 0.")
        return seconds
    return math.nan


def measurements(
    rows: Sequence[Mapping[str, Any] | str], source: str, known: Known = NOTHING
) -> tuple[list[Measurement], list[str]]:
    """Those that can be used, and why the others cannot; raises PlannerError where none can."""
    usable: list[Measurement] = []
    left: list[str] = []
    for number, row in enumerate(rows, 1):
        try:
            if isinstance(row, str):
                raise PlannerError(row)
            usable.append(measurement(row, source, known))
        except EXPECTED as problem:
            left.append(f"{source}, row {number}: {problem}")
    if rows and not usable:
        raise PlannerError(left[0])
    return usable, left


@dataclass(frozen=True, slots=True, eq=False)
class OwnMeasurements:
    """What measured rows say of estimates of both times."""

    tbt: Learnt
    ttft: Learnt
    rows: tuple[Measurement, ...]  # used
    notes: tuple[str, ...]  # which were not used, and why

    @property
    def times(self) -> Times:
        """For what is computed of deployments, whichever rows it came from."""
        return Times(self.tbt, self.ttft)


def own_of(
    measured_rows: Sequence[Measurement], notes: Sequence[str], fit: EstimateFit
) -> OwnMeasurements | None:
    """None where there is no row that an estimate can be compared with."""
    sentences = list(notes)
    if len(measured_rows) > MOST_ROWS:
        sentences.append(
            f"{MOST_ROWS} of {len(measured_rows):,} measured rows are used, spread evenly."
        )
        measured_rows = [
            measured_rows[i] for i in np.linspace(0, len(measured_rows) - 1, MOST_ROWS).astype(int)
        ]
    answers = estimate_rows(
        [row.deployment for row in measured_rows], fit.calibration, efficiencies()
    )
    kept: list[tuple[Measurement, Estimate]] = []
    for row, answer in zip(measured_rows, answers, strict=True):
        if isinstance(answer, Refused):
            sentences.append(f"{row.source}: {answer.reason}")
        else:
            kept.append((row, answer))
    if not kept:
        return None
    rows = tuple(row for row, _ in kept)
    traits = traits_of([row.deployment for row in rows])
    learnt = {}
    for name in ("tbt", "ttft"):
        measured = np.array([getattr(row, f"{name}_s") for row in rows])
        off = np.log(measured / np.array([getattr(e, f"{name}_s") for _, e in kept]))
        there = np.isfinite(off)
        learnt[name] = learn(fit.alike[name].likeness, traits.take(there), off[there])
        for same in learnt[name].dropped:
            sentences.append(
                f"Measured {name.upper()} of {_called(rows, traits, same)} is set aside: its rows "
                "do not predict each other better than the estimate does."
            )
        measured_here = [row for row, used in zip(rows, there, strict=True) if used]
        pairs = contradictions(fit.alike[name].likeness, traits.take(there), off[there])
        sentences += [
            _contradiction(name, measured_here[i], measured_here[j], off[there][[i, j]])
            for i, j in pairs
        ]
    return OwnMeasurements(learnt["tbt"], learnt["ttft"], rows, tuple(sentences))


def _contradiction(name: str, first: Measurement, second: Measurement, off: FloatArray) -> str:
    first_ms, second_ms = (getattr(row, f"{name}_s") * 1e3 for row in (first, second))
    where, (share, other_share) = first.deployment, np.exp(off)
    return (
        f"Measured {name.upper()} of {where.shape.name} on {where.gpu.name} contradicts itself: "
        f"{first_ms:,.4g} and {second_ms:,.4g} ms ({share:.2f} and {other_share:.2f} of the "
        f"estimate) with {where.concurrency:,.0f} in flight, {where.isl:,.0f} tokens in and "
        f"{where.osl:,.0f} out. If these are two deployments, say what differs (engine version, "
        "arrangement, speculative decoding); until then its error is stated as without them."
    )


def _called(rows: Sequence[Measurement], traits: Traits, same: str) -> str:
    deployment = rows[int(np.flatnonzero(traits.labels["deployment"] == same)[0])].deployment
    return f"{deployment.shape.name} on {deployment.gpu.name}"


@dataclass(frozen=True, slots=True)
class Change:
    """What the rows make of one estimate; errors are relative, of half and of nine of ten."""

    tbt: float  # factor on TBT
    ttft: float  # factor on TTFT
    tbt_error: tuple[float, float]
    ttft_error: tuple[float, float]
    rows: int  # of the same deployment
    alike: int  # of others, which share a part with it


def changes(
    measurements: OwnMeasurements, deployments: Sequence[Deployment], fit: EstimateFit
) -> list[Change]:
    """One per deployment, in their order."""
    where = traits_of(deployments)
    factor: dict[str, FloatArray] = {}
    error: dict[str, list[tuple[float, float]]] = {}
    for name, learnt in (("tbt", measurements.tbt), ("ttft", measurements.ttft)):
        moved = learnt.at(where)
        half, nine = fit.alike[name].stated.of(where.split, moved.after)
        factor[name] = np.exp(moved.shift)
        error[name] = list(zip(half.tolist(), nine.tolist(), strict=True))
    names = traits_of([row.deployment for row in measurements.rows]).labels["deployment"]
    changes = []
    for i, name in enumerate(where.labels["deployment"].tolist()):
        same = int((names == name).sum())
        changes.append(
            Change(
                float(factor["tbt"][i]), float(factor["ttft"][i]),
                error["tbt"][i], error["ttft"][i], same, names.size - same,
            )
        )  # fmt: skip
    return changes


def moved(estimate: Estimate, change: Change, osl: float) -> Estimate:
    """The estimate with its times moved; as many requests stay in it, so throughput follows."""
    ttft, tbt = estimate.ttft_s * change.ttft, estimate.tbt_s * change.tbt
    before = estimate.ttft_s + (osl - 1.0) * estimate.tbt_s
    tokens = estimate.tokens_per_s * before / (ttft + (osl - 1.0) * tbt)
    return replace(estimate, ttft_s=ttft, tbt_s=tbt, tokens_per_s=tokens)


LOADS = (1.0, 4.0, 16.0, 64.0, 256.0)  # requests in flight that a next measurement may have


@dataclass(frozen=True, slots=True)
class Next:
    """The measurement that would narrow the estimates of a deployment most."""

    concurrency: int
    isl: int
    osl: int
    error: tuple[float, float]  # of TTFT and TBT now: half within, mean over LOADS
    after: tuple[float, float]  # expected with that row
    commands: tuple[str, str]  # vLLM's benchmark and GuideLLM's


def next_measurement(
    measurements: OwnMeasurements | None, deployment: Deployment, model: str, fit: EstimateFit
) -> Next:
    """Over LOADS and the load of ``deployment``: the row after which the mean of the stated errors
    of all of them is least. A row's variance does not depend on what it will show. ``model`` is
    what the engine serves it as."""
    loads = sorted({*LOADS, deployment.concurrency})
    traits = traits_of([replace(deployment, concurrency=load) for load in loads])
    now, after = [], []
    for name in ("ttft", "tbt"):
        known = fit.alike[name]
        learnt = getattr(measurements, name) if measurements else None
        rows = learnt.rows if learnt else traits.take(np.zeros(0, np.int64))
        now.append(_mean_error(known, rows, traits))
        after.append(
            [_mean_error(known, _with(rows, traits, i), traits) for i in range(traits.size)]
        )
    gain = np.array(after) / np.array(now)[:, None]
    best = int(gain.sum(axis=0).argmin())
    users, isl, osl = round(loads[best]), round(deployment.isl), round(deployment.osl)
    return Next(
        users, isl, osl, (now[0], now[1]), (after[0][best], after[1][best]),
        commands_of(model, deployment.engine, users, isl, osl),
    )  # fmt: skip


def _with(rows: Traits, others: Traits, which: int) -> Traits:
    labels = {
        name: np.append(rows.labels[name], others.labels[name][which]) for name in others.labels
    }
    return Traits(
        labels,
        np.vstack([rows.load, others.load[which : which + 1]]),
        np.append(rows.split, others.split[which]),
    )


def _mean_error(known: Any, rows: Traits, others: Traits) -> float:
    learnt = learn(known.likeness, rows, np.zeros(rows.size), judged=False)
    return float(known.stated.of(others.split, learnt.at(others).after)[0].mean())


PORTS = {"sglang": 30000}  # where an engine serves unless told otherwise; 8000 the others


def commands_of(model: str, engine: str, users: int, isl: int, osl: int) -> tuple[str, str]:
    """What measures a load: ten rounds of it, so that the first wave is a tenth."""
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
