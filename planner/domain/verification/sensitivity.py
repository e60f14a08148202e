"""Test how sensitive a recommendation is (methods.md X1, X3).

The recommended policy is replayed in the same window. Each replay changes one thing that
nobody knows in advance.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from planner.domain.progress import Progress
from planner.domain.replay.replay import replayed
from planner.domain.run_parts import (
    IN_PROCESS,
    Part,
    Parts,
)
from planner.domain.study import (
    PolicyRun,
    Study,
)
from planner.domain.traffic.forecast_requests import requests_ahead
from planner.domain.traffic.traffic import MEASURED
from planner.domain.verification.profile_error import (
    slower_or_faster,
    stated_error,
)
from planner.policies.base import Policy
from planner.policies.context import (
    Making,
    Ready,
)
from simulation.fleet import Fleet, Pool
from simulation.trace import Trace

SEEDS = 1  # seeds tried in addition to the scenario's own


@dataclass(frozen=True, slots=True)
class Sure:
    """Result of the recommended policy in the window with one change."""

    what: str
    attainment: dict[str, float | None]
    cost_usd: float
    meets_slo: bool

    @classmethod
    def of(cls, what: str, run: PolicyRun) -> Sure:
        summary = run.summary
        return cls(what, summary.slo_attainment, summary.cost_usd, run.meets_slo)


def how_sure(
    study: Study,
    policy: Policy,
    making: Making,
    *,
    seed: int,
    progress: Progress,
    parts: Parts = IN_PROCESS,
) -> tuple[Sure, ...]:
    """Replay the policy with each change and return the results.

    The changes are another seed, with new requests if requests are drawn, and every profile
    slower by its own error, if one is known.
    """
    ready = policy.ready(making)

    def tested(what: str, changed: Study, ready: Ready, its_seed: int, report: Progress) -> Sure:
        run = replayed(changed, policy, ready, seed=its_seed, progress=report, detailed=False)
        return Sure.of(what, run)

    return tuple(
        parts.map(
            [
                Part(f"Stress test: {change[0]}", partial(tested, *change))
                for change in _changes(study, ready, seed)
            ],
            progress,
            at_once=1,  # all replay the same policy object
        )
    )


def _changes(study: Study, ready: Ready, seed: int) -> Iterator[tuple[str, Study, Ready, int]]:
    """Yield each change in words, with the study, policy and seed to replay."""
    for other in range(seed + 1, seed + 1 + SEEDS):
        trace = _drawn(study, other)
        if trace is None:  # for measured requests a seed changes almost nothing
            yield f"seed {other}", study, ready, other
            break
        yield f"seed {other}, requests drawn again", replace(study, trace=trace), ready, other
    slower = _slower(ready.fleet)
    if slower is not None:
        yield "profiles slower by their error", study, replace(ready, fleet=slower), seed


def _drawn(study: Study, seed: int) -> Trace | None:
    """Return new requests for the window; None if they were measured."""
    window, traffic = study.window, study.traffic
    if window.ahead:
        method = study.settings.plan.forecast.method
        return requests_ahead(traffic, window, method, seed, cells=study.cells)[0]
    if traffic.replay == MEASURED:
        return None
    return traffic.requests(window.start_s, window.end_s, seed, cells=study.cells)


def _slower(fleet: Fleet) -> Fleet | None:
    """Return the fleet with every profile slower by its error; None if no error is known."""

    def off(pool: Pool) -> Pool:
        error = stated_error(pool.profile)
        if error is None:
            return pool
        return replace(pool, profile=slower_or_faster(pool.profile, error.value, 1))

    pools = tuple(off(pool) for pool in fleet.pools)
    return None if pools == fleet.pools else replace(fleet, pools=pools)
