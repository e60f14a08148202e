"""What one replica carries within the SLOs: what ``bin/manage size`` calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from planner.errors import PlannerError
from planner.pipeline.documents import capacity_document
from planner.pipeline.profile_error import StatedError, slower_or_faster, stated_error
from planner.pipeline.progress import Progress, part, silent
from planner.pipeline.sizing import Lengths, size_lengths, strictest
from planner.pipeline.traffic import build_traffic
from planner.scenario.build import Hardware, build_hardware
from planner.scenario.document import parse
from planner.services.execution import stored_traces
from planner.services.resolution import known_of, resolve_scenario
from simulation.capacity import PRECISION, REQUESTS
from simulation.errors import SimulationError

MOST_TOKENS = 10_000_000  # of a prompt or an answer


def size_scenario(
    document: str,
    name: str,
    *,
    isl: int | None = None,
    osl: int | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """The largest request rate of one replica per model and GPU type, by the keys of the contract
    (interfaces.md), and what it would be if the profile were slower or faster by its own error.

    ``document`` is a scenario whose traces are stored. Lengths are those of its traffic, or with
    ``isl`` and ``osl`` (both or neither) the same for all requests. Raises PlannerError or
    SimulationError saying what is wrong, ScenarioError too where a model meets a tier nowhere.
    """
    given = _given(isl, osl)
    scenario = parse(document, name)
    hardware = build_hardware(scenario, known_of(resolve_scenario(scenario)))
    progress(0.0, "Reading the traffic")
    lengths: Sequence[Lengths]
    if given is None:
        lengths = build_traffic(scenario, stored_traces(scenario)).lengths
        drawn = "lengths drawn from the scenario's traffic"
    else:
        _check_context(hardware, given)
        one = (np.array(given[:1], np.int32), np.array(given[1:], np.int32))
        lengths = [one] * len(hardware.models)
        drawn = f"{given[0]:,} input and {given[1]:,} output tokens each"
    sizes = size_lengths(hardware, lengths, scenario.seed, part(progress, 0.1, 0.4))
    errors = {at: stated_error(hardware.profiles[at]) for at in sizes.capacity}
    again = _again(hardware, lengths, errors, scenario.seed, part(progress, 0.4, 1.0))
    percentile = {tier.name: 100 * tier.attainment for tier in hardware.tiers}
    pools = []
    rows = capacity_document(sizes, hardware)
    for (at, (_, found)), row in zip(sizes.capacity.items(), rows, strict=True):
        error, source = errors[at], row.pop("source")
        pools.append(
            {
                **row,
                "role": "mixed",
                "percentile": percentile[row["tier"]],
                "attainment": found.attainment,
                "profile": hardware.profiles[at].kind,
                "provenance": {"kind": row["provenance"], "source": source},
                "expected_error": error.value if error else None,
                "error_basis": error.basis if error else "not checked against measurements",
                **again[at],
            }
        )
    return {
        "scenario": scenario.name,
        "pools": pools,
        "sized_by": f"simulation of one replica request by request: {REQUESTS:,} Poisson arrivals, "
        f"{drawn}; the largest rate that meets the tier, to within {PRECISION:.0%}",
        "notes": list(sizes.notes),
    }


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
    errors: dict[tuple[int, int], StatedError | None],
    seed: int,
    progress: Progress,
) -> dict[tuple[int, int], dict[str, float | None]]:
    """Largest rates with each profile slower and faster by its own error: 0 where it then meets a
    tier at no rate, None where no error is known."""
    found: dict[tuple[int, int], dict[str, float | None]] = {}
    for done, (at, error) in enumerate(errors.items()):
        progress(done / len(errors), "Sizing again with the profiles' errors")
        found[at] = {}
        for word, sign in (("slower", +1), ("faster", -1)):
            rate = None
            if error:
                profile = slower_or_faster(hardware.profiles[at], error.value, sign)
                try:
                    rate = strictest(profile, lengths[at[0]], hardware.tiers, seed)[1].max_rps
                except SimulationError:
                    rate = 0.0
            found[at][f"max_rps_if_{word}"] = rate
    return found
