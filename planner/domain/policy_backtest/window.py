"""Backtest window, and the factors on its requests that a policy has to withstand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from threading import RLock

import numpy as np

from planner.domain.planning.inputs import Planned
from planner.domain.planning.planning import plan_window
from planner.domain.policy_backtest.perturbed_days import (
    FEW,
    STRAYS,
    by_what_it_sees,
    lives_by_sight,
    repeats,
    unlike,
    unseen,
)
from planner.domain.policy_backtest.stress_tests import lengthened
from planner.domain.progress import (
    Progress,
    silent,
)
from planner.domain.random_streams import (
    Stream,
    generator,
)
from planner.domain.replay.backtest_windows import Earlier
from planner.domain.replay.policy_context import Loads
from planner.domain.replay.rated_signals import PressureTests
from planner.domain.replay.replay import run_policy
from planner.domain.study import (
    PolicyRun,
    Study,
)
from planner.domain.traffic.day_growth import times
from planner.errors import EXPECTED
from planner.policies.base import Policy
from planner.policies.context import Plan

SETTLED = 24  # cold starts after which the initial fleet no longer matters (assumed)


@dataclass(eq=False)
class Stage:
    """Earlier window, with the data that all its policies share."""

    study: Study
    whole: Earlier  # all windows of the study
    seed: int
    # Held while shared data is computed, so that threads compute it only once.
    making: RLock = field(default_factory=RLock)
    tests: PressureTests = field(init=False)
    loads: Loads = field(init=False)
    _planned: Planned | None = field(default=None, init=False)
    _strayed: dict[float, Study] = field(default_factory=dict, init=False)  # by share

    def __post_init__(self) -> None:
        self.tests = PressureTests(self.study, self.making)
        self.loads = Loads(self.study, self.making)

    @property
    def planned(self) -> Planned:
        with self.making:
            if self._planned is None:
                self._planned = plan_window(self.study.plan_input, silent)
            return self._planned

    def replay(
        self, policy: Policy, alive: Progress, bars: Mapping[str, float] | None = None
    ) -> PolicyRun:
        """Replay a policy on the window.

        In a window that is short compared with the cold start, a reactive policy is replayed twice.
        The second replay begins with the fleet at the end of the first. Otherwise the policy could
        live off the fleet that it began with. ``bars``: see ``replay.replayed``.
        """
        short = self.study.window.duration_s < SETTLED * self.study.hardware.startup_s
        if not (short and by_what_it_sees(policy)):
            return self._played(self.study, policy, alive, bars)
        run = self._played(self.study, policy, alive)
        if len(run.fleet.pools) == len(self.study.hardware.pool_index):
            return self._played(_left(self.study, run), policy, alive, bars)
        return run

    def stray(
        self,
        policy: Policy,
        alive: Progress,
        share: float,
        bars: Mapping[str, float] | None = None,
    ) -> PolicyRun:
        """Replay a policy with ``share`` times the requests."""
        return self._played(self.strayed(share), policy, alive, bars)

    @cached_property
    def doubt(self) -> float:
        """P90 of the forecast over its mean, at least 1 and at most the largest of STRAYS.

        It is independent of the percentile that is planned for. A plan for a percentile has this
        headroom unless tuning took it away. Without enough history it is the largest of STRAYS.
        """
        try:
            forecasts = self.planned.forecasts
        except EXPECTED:
            return STRAYS[-1]
        high = sum(float(np.nansum(series.high)) for series in forecasts)
        mean = sum(float(np.nansum(series.mean)) for series in forecasts)
        return float(np.clip(high / mean, 1.0, STRAYS[-1])) if mean > 0 else 1.0

    def lengthened(self, policy: Policy, alive: Progress) -> PolicyRun:
        """Replay a policy with longer outputs in the second half of the window."""
        study = self.study
        trace = lengthened(study.trace, study.window.duration_s / 2)
        return self._played(replace(study, trace=trace), policy, alive)

    def strayed(self, share: float) -> Study:
        with self.making:
            if share not in self._strayed:
                study, rng = self.study, generator(self.seed, Stream.STRAYS)
                trace = times(study.trace, share, study.window.bin_s, rng)
                self._strayed[share] = replace(study, trace=trace)
            return self._strayed[share]

    def _played(
        self,
        study: Study,
        policy: Policy,
        alive: Progress,
        bars: Mapping[str, float] | None = None,
    ) -> PolicyRun:
        return run_policy(
            study,
            policy,
            seed=self.seed,
            progress=alive,
            planned=self.planned if policy.traits.plan == Plan() else None,
            tests=self.tests,
            earlier=self.whole,
            loads=self.loads,
            detailed=False,
            bars=bars,
        )


def shares_of(policy: Policy, stages: Sequence[Stage]) -> tuple[float, ...]:
    """Return the factors on the requests of the first window that ``policy`` also has to withstand.

    Factors that the other windows cover already are left out.
    """
    nearest, *others = (len(stage.study.trace) / stage.study.window.duration_s for stage in stages)
    if repeats(policy):
        return unlike([other / nearest for other in others])
    if by_what_it_sees(policy) or lives_by_sight(policy):
        return unseen([other / nearest for other in others])
    decisions = sum(len(stage.study.window.period_starts_s) for stage in stages)
    if policy.traits.plan is None or decisions >= FEW or stages[0].doubt <= 1.0:
        return ()
    return (stages[0].doubt,)


def _left(study: Study, run: PolicyRun) -> Study:
    """Return the study with the fleet at the end of ``run`` as today's fleet."""
    today = np.zeros_like(study.today)
    up = np.rint(run.series.ready[:, -1] + run.series.starting[:, -1])
    for place, count in zip(study.hardware.pool_index, up, strict=True):
        today[place] = int(count)
    return replace(study, hardware=replace(study.hardware, today=today))
