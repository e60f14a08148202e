"""What one replica carries within the SLOs, by simulation, beside what the closed forms say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from planner.errors import PlannerError
from planner.scenario.build import Hardware, build_hardware
from planner.scenario.known import NOTHING, Known
from planner.scenario.schema import Scenario
from planner.studies.checks.profile_error import StatedError, slower_or_faster, stated_error
from planner.studies.outcome import Outcome, Traces
from planner.studies.progress import Progress, part
from planner.studies.results.documents import capacity_document, clean
from planner.studies.sizing.size_errors import expected
from planner.studies.sizing.sizing import Lengths, column_sized, size_lengths
from planner.studies.traffic.traffic import Traffic, build_traffic
from simulation.errors import SimulationError
from simulation.fleet import Tier
from simulation.sizing.batch_queue import evaluate, saturated
from simulation.sizing.batch_sizing import size_pool
from simulation.sizing.capacity import PRECISION, REQUESTS, SENDERS
from simulation.sizing.workload import Workload, local_burstiness

Document = dict[str, Any]
At = tuple[int, int]  # model, column

MOST_TOKENS = 10_000_000  # of a prompt or an answer
MOST_BURSTY = 100.0
TRACE, POISSON = "trace", "poisson"
POINTS = np.array([0.02, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.94, 0.97])


def run(
    scenario: Scenario,
    traces: Traces,
    *,
    isl: int | None = None,
    osl: int | None = None,
    burstiness: str = POISSON,
    known: Known = NOTHING,
    progress: Progress,
) -> Outcome:
    """The largest request rate of one replica per model and column, by the keys of the contract
    (interfaces.md), and what it would be if the profile were slower or faster by its own error;
    table ``curve``: TTFT and TBT against the rate by the closed forms.

    Lengths are those of the scenario's traffic, or with ``isl`` and ``osl`` (both or neither) the
    same for all requests. ``burstiness`` is ``poisson``, ``trace`` (that of each model's own
    arrivals) or a squared coefficient of variation of the gaps. Raises PlannerError saying what is
    wrong, ScenarioError too where a model meets a tier nowhere.
    """
    given = _given(isl, osl)
    hardware = build_hardware(scenario, known)
    asked = _burstiness(burstiness)
    progress(0.0, "Reading the traffic")
    notes: list[str] = []
    lengths: Sequence[Lengths]
    scv = [1.0 if asked is None else asked] * len(hardware.models)
    if given is None or asked is None:
        traffic = build_traffic(scenario, traces)
        lengths = traffic.lengths
        if asked is None:
            scv = [_of_trace(traffic, m, notes) for m in range(len(hardware.models))]
    if given is None:
        drawn = "lengths drawn from the scenario's traffic"
    else:
        _check_context(hardware, given)
        one = (np.array(given[:1], np.int32), np.array(given[1:], np.int32))
        lengths = [one] * len(hardware.models)
        drawn = f"{given[0]:,} input and {given[1]:,} output tokens each"
    sizes = size_lengths(hardware, lengths, scenario.seed, part(progress, 0.1, 0.4), scv)
    errors = {at: stated_error(hardware.profiles[at]) for at in sizes.capacity}
    again = _again(hardware, lengths, errors, scv, scenario.seed, part(progress, 0.4, 0.95))
    pools, curves = [], []
    rows = capacity_document(sizes, hardware)
    for (at, (tier, found)), row in zip(sizes.capacity.items(), rows, strict=True):
        error, source = errors[at], row.pop("source")
        work = Workload(*lengths[at[0]], burstiness=scv[at[0]])
        predicted, curve = _predicted(hardware, at, tier, work, found.max_rps)
        name = {key: row[key] for key in ("model", "arrangement", "role")}
        curves += [name | point for point in curve]
        limits = next(one for one in hardware.tiers if one.name == tier)
        pools.append(
            {
                **row,
                "percentile": 100 * limits.attainment,
                "ttft_limit_ms": None if limits.ttft_s is None else 1000 * limits.ttft_s,
                "tbt_limit_ms": None if limits.tbt_s is None else 1000 * limits.tbt_s,
                "attainment": found.attainment,
                "burstiness": scv[at[0]],
                "profile": hardware.profiles[at].kind,
                "provenance": {"kind": row["provenance"], "source": source},
                "expected_error": error.value if error else None,
                "error_basis": error.basis if error else "not checked against measurements",
                **predicted,
                **again[at],
            }
        )
    said = "Poisson arrivals" if burstiness == POISSON else "arrivals (gaps gamma-distributed)"
    return Outcome(
        {
            "kind": "size",
            "scenario": scenario.name,
            "pools": pools,
            "sized_by": f"simulation of one replica request by request: {REQUESTS:,} and again "
            f"{2 * REQUESTS:,} {said}, {drawn}; the largest rate that meets the tier in both, to "
            f"within {PRECISION:.0%}",
            "size_error": expected("simulation", 0.0).document(),
            "provenance": [
                {"what": what, "kind": source.kind, "source": source.source}
                for what, source in hardware.provenance
            ],
            "notes": [*notes, *sizes.notes],
        },
        {"curve": pl.DataFrame(curves, infer_schema_length=None)},
    )


def _predicted(
    hardware: Hardware, at: At, tier: str, work: Workload, max_rps: float
) -> tuple[Document, list[Document]]:
    """What the closed forms say of the size and at that rate, and over all rates; None where they
    find no rate."""
    limits = next(one for one in hardware.tiers if one.name == tier)
    role, profile = hardware.columns[at[1]].role, hardware.profiles[at]
    link = next((link for (m, _), link in hardware.links.items() if m == at[0]), None)
    way = {"role": role, "link": link if role == "decode" else None, "senders": SENDERS}
    most = saturated(profile, work, **way)  # type: ignore[arg-type]
    share = limits.attainment
    curve = []
    for load in POINTS:
        seen = evaluate(profile, work.at(load * most), **way)  # type: ignore[arg-type]
        if seen.stable:
            curve.append(
                {
                    "rate": float(load * most),
                    "load": float(load),
                    "ttft_mean_ms": _ms(seen.ttft.mean if len(seen.ttft.values) else np.nan),
                    "ttft_ms": _ms(seen.ttft.quantile(share)),
                    "tbt_mean_ms": _ms(seen.tbt.mean if len(seen.tbt.values) else np.nan),
                    "tbt_ms": _ms(seen.tbt.quantile(share)),
                    "e2e_ms": _ms(seen.e2e.quantile(share)),
                    "wait_mean_ms": _ms(seen.wait.mean),
                    "utilisation": seen.utilisation,
                    "batch": seen.batch,
                }
            )
    seen = evaluate(profile, work.at(min(max_rps, 0.999 * most)), **way)  # type: ignore[arg-type]
    only = limits if role == "both" else _of_role(limits, role)
    try:
        guess = size_pool(profile, work, only, **way).max_rps  # type: ignore[arg-type]
    except SimulationError:
        guess = None
    load = max_rps / most
    document = {
        "load": clean(load),
        "wait_ms": _ms(seen.wait.mean),
        "e2e_ms": _ms(seen.e2e.quantile(share)),
        "e2e_mean_ms": _ms(seen.e2e.mean),
        "utilisation": seen.utilisation,
        "predicted_rps": guess,
        "prediction_error": guess / max_rps - 1.0 if guess and max_rps else None,
        "latency_error": expected("latency", load).document(),
    }
    return document, curve


def _of_role(tier: Tier, role: str) -> Tier:
    if role == "prefill":
        return replace(tier, tbt_s=None, e2e_s=None)
    return replace(tier, ttft_s=None, e2e_s=None)


def _ms(seconds: float) -> float | None:
    return clean(float(seconds) * 1000)


def _given(isl: int | None, osl: int | None) -> tuple[int, int] | None:
    if isl is None and osl is None:
        return None
    if isl is None or osl is None:
        missing, other = ("isl", "osl") if isl is None else ("osl", "isl")
        raise PlannerError(
            f"--{missing} is missing; give both, or leave out --{other} for the lengths of the "
            "scenario's traffic."
        )
    for option, value in (("isl", isl), ("osl", osl)):
        if not 1 <= value <= MOST_TOKENS:
            raise PlannerError(f"--{option} {value}: give 1 to {MOST_TOKENS:,} tokens.")
    return isl, osl


def _check_context(hardware: Hardware, given: tuple[int, int]) -> None:
    for model in hardware.models:
        if sum(given) > model.max_context:
            raise PlannerError(
                f"--isl {given[0]} and --osl {given[1]} are {sum(given):,} tokens, and the context "
                f"of {model.name} is {model.max_context:,}; give less."
            )


def _again(
    hardware: Hardware,
    lengths: Sequence[Lengths],
    errors: dict[At, StatedError | None],
    scv: Sequence[float],
    seed: int,
    progress: Progress,
) -> dict[At, dict[str, float | None]]:
    """Largest rates with each profile slower and faster by its own error: 0 where it then meets a
    tier at no rate, None where no error is known."""
    found: dict[At, dict[str, float | None]] = {}
    for done, ((m, g), error) in enumerate(errors.items()):
        progress(done / len(errors), "Sizing again with the profiles' errors")
        found[m, g] = {}
        for word, sign in (("slower", +1), ("faster", -1)):
            rate = None
            if error:
                profile = slower_or_faster(hardware.profiles[m, g], error.value, sign)
                try:
                    rate = column_sized(
                        hardware, m, g, lengths[m], seed, profile=profile, burstiness=scv[m]
                    )[1].max_rps
                except SimulationError:
                    rate = 0.0
            found[m, g][f"max_rps_if_{word}"] = rate
    return found


def _burstiness(given: str) -> float | None:
    """As a number; None for that of the trace."""
    if given == TRACE:
        return None
    if given == POISSON:
        return 1.0
    try:
        value = float(given)
    except ValueError:
        value = np.nan
    if not 0 <= value <= MOST_BURSTY:
        raise PlannerError(
            f"--burstiness {given}: give poisson, trace, or a squared coefficient of variation "
            f"from 0 to {MOST_BURSTY:g}."
        )
    return value


def _of_trace(traffic: Traffic, m: int, notes: list[str]) -> float:
    """Of a model's own arrivals, within five minutes; Poisson, with a note, where only counts are
    known."""
    arrivals = traffic.measured.arrival_s[traffic.measured.model == m]
    if not len(arrivals):
        notes.append(
            f"Arrivals of {traffic.models[m]} are known by the bin, not one by one: sized as "
            "Poisson."
        )
        return 1.0
    return min(local_burstiness(arrivals), MOST_BURSTY)
