"""Search the candidate that each level of assurance recommends.

All policies are tried on the hardest day and the forecast day first. Then each is tried on every
required day, the cheapest first. A policy is left out if the replicas that it always keeps cost
too much on the weighted days to win against the best candidate so far, ties included. A policy
without such replicas is left out if it is over TIE dearer on the forecast day.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import inf, log

from planner.domain.parallel import DEFAULT_THREADS, run_in_parallel
from planner.domain.progress import Progress, part, split_progress
from planner.domain.recommend.rule import NEAR, TIE, Candidate, CaseResult, Choice, recommend
from planner.domain.recommend.test_days import Case, TestDay
from planner.domain.recommend.trials import STATIC, Trial, Trials, values
from planner.domain.replay.replica_loss import losses_of
from planner.domain.run_parts import Part
from planner.inputs.scenario.schema.test_days import LEVELS
from planner.policies.base import Policy
from planner.policies.registry import simplicity
from simulation.bisection import bisect_first

DEAR = 1.5  # times the cost of the best, at which a harder day is not simulated on
UNDECIDED = 0.75  # share of a cost limit from which on plans are solved for a better bound
CENT = 0.005  # dollars, of rounding

Check = tuple[TestDay, Case]
# Index of the first value that passes, and the results by index of the value and of the case.
Screened = tuple[int | None, list[tuple[int, int, CaseResult]]]


def choices(
    trials: Trials, policies: Sequence[Policy], shown: int | None = None
) -> Iterator[tuple[str, tuple[Choice, list[Candidate]]]]:
    """Yield each level of assurance with its choice and all its candidates, the lowest level first.

    Policies that use future data are left out, and levels without a candidate. If ``shown`` is the
    index of a level, the search at the other levels omits a static fleet that cannot win.
    """
    able = [policy for policy in policies if not policy.traits.uses_future_data]
    shown_checks = None if shown is None else LevelSearch(trials, shown).checks
    candidates: list[Candidate] = []
    below: LevelSearch | None = None
    for level, name in enumerate(LEVELS):
        report = part(trials.progress, *(at / len(LEVELS) for at in (level, level + 1)))
        search = LevelSearch(trials, level, below)
        search.omits_static = shown_checks is not None and search.checks != shown_checks
        # A level that requires the same cases as the one below has the same candidates.
        if below is None or search.checks != below.checks:
            candidates = search.run(able, report)
            below = search
        choice = recommend(candidates, trials.days, level)
        if choice is not None:
            yield name, (choice, candidates)


@dataclass(eq=False)
class LevelSearch:
    """The search for the cheapest policy that passes at one level of assurance.

    ``below`` is the search at the next lower level; None at the lowest. ``omits_static`` leaves out
    the static fleet if it costs too much at the level below.
    """

    trials: Trials
    level: int
    below: LevelSearch | None = None
    omits_static: bool = False
    candidates: list[Candidate] = field(default_factory=list, init=False)
    best: Candidate | None = field(default=None, init=False)
    # By policy, the first value that passes or costs too much. All smaller ones fail.
    first: dict[str, int] = field(default_factory=dict, init=False)

    def run(self, policies: Sequence[Policy], progress: Progress) -> list[Candidate]:
        """Return one candidate for each policy that can win; if no policy passes, the nearest ones.

        The static fleet and guarded plans are tried first, the best one of the level below before
        other guarded plans. Their cost limits the others. Where a static fleet may be left out, it
        comes after the best guarded plan, or after all of them if it needs more replicas than at
        the level below.
        """
        leader = None if self.below is None or self.below.best is None else self.below.best.policy
        static = [policy for policy in policies if policy.name == STATIC]
        guarded = [policy for policy in policies if policy.traits.may_exceed_plan]
        led = [policy for policy in guarded if policy.key == leader]
        others = [policy for policy in policies if policy not in (*static, *guarded)]
        guarded = [policy for policy in guarded if policy not in led]
        if self.omits_static and self.below is not None:
            self._try_all(led, part(progress, 0.0, 0.1))
            led = []
            if self._static_fails(min(self._limit(), self._min_static_cost())):
                self._try_all(guarded, part(progress, 0.1, 0.2))
                guarded = []
        if static and not (self.omits_static and self._static_fails(self._limit())):
            self.trials.size_static_fleet(self.level, part(progress, 0.2, 0.25))
            self._try_all(static, part(progress, 0.25, 0.3))
        self._try_all(led, part(progress, 0.3, 0.4))
        self._try_all(guarded, part(progress, 0.4, 0.7))
        self._try_all(others, part(progress, 0.7, 0.95))
        if self.best is None:
            return self._nearest(policies, part(progress, 0.95, 1.0))
        return self.candidates

    @cached_property
    def checks(self) -> list[Check]:
        """Return the required cases as (day, case), those that exceed the forecast most first.

        Among equals, those with the most requests come first.
        """
        checks = [
            (day, case)
            for day in self.trials.days
            if day.required_at(self.level)
            for case in day.cases
            if case.required
        ]
        expected = _peak_replicas(self.trials.cases[0])
        order = {
            case: (_excess_over_forecast(case, expected), len(case.study().trace))
            for _, case in checks
        }
        return sorted(checks, key=lambda check: order[check[1]], reverse=True)

    def _min_static_cost(self) -> float:
        """Return a lower limit of the static fleet's cost on the forecast day, in dollars.

        It is the cost of the fleet at the level below, which requires fewer days. It is 0 if
        unknown.
        """
        if self.below is None:
            return 0.0
        costs = [self.trials.on_forecast_day(its) for its in self.below.candidates
                 if its.policy == STATIC]  # fmt: skip
        return next((cost for cost in costs if cost < inf), self.below._min_static_cost())

    def _static_fails(self, usd: float) -> bool:
        """Return whether static fleets of at most ``usd`` dollars are known not to pass."""
        return self._min_static_cost() > usd or self.trials.static_fails(self.level, usd)

    def _limit(self) -> float:
        """Return the cost on the forecast day above which a policy cannot win, in dollars."""
        if self.best is None:
            return inf
        return self.trials.on_forecast_day(self.best) * (1 + TIE) + CENT

    def _cannot_win(self, policy: Policy, index: int) -> bool:
        """Return whether a parameter value costs too much to win, if ties go to the simpler policy.

        Days that were not simulated count with the least that the policy can cost there. ``index``
        is that of the value. Without a best, the result is False.
        """
        if self.best is None:
            return False
        trials = self.trials

        def lower_bound(case: Case, solve: bool) -> CaseResult:
            """Return the result of a case, or a lower bound if it was not simulated."""
            trial = self._trial(policy, index, case)
            known = trials.results.get(trial)
            if known is not None and known.cost_usd < inf:
                return known
            return CaseResult(trials.min_cost_usd(policy, trial, solve=solve), {}, 0.0)

        def bound(solve: bool) -> float:
            """Return a lower bound of the expected cost; a better one if plans are solved."""
            return replace(
                trials.candidate(policy, index, self.level),
                results={
                    i: tuple(lower_bound(case, solve) for case in day.cases)
                    for i, day in enumerate(trials.days)
                    if day.weight
                },
            ).expected_cost_usd(trials.days)

        usd = self.best.expected_cost_usd(trials.days)
        wins_ties = simplicity(policy.key) < simplicity(self.best.policy)
        limit = usd * (1 + TIE) + CENT if wins_ties else usd / (1 + TIE) - CENT
        before_solving = bound(solve=False)
        if before_solving >= limit or before_solving < UNDECIDED * limit:
            return before_solving >= limit
        return bound(solve=True) >= limit

    def _trial(self, policy: Policy, index: int, case: Case) -> Trial:
        """Return the trial of a case: the policy with its parameter value number ``index``."""
        return self.trials.trial(policy, index, self.level, case)

    def _try_all(self, policies: Sequence[Policy], progress: Progress) -> None:
        """Screen ``policies`` on two days, then try those that may win on all, cheapest first."""
        trials, limit, forecast_day = self.trials, self._limit(), self.trials.cases[0]

        def screen(policy: Policy, report: Progress) -> Screened:
            return self._screen(policy, limit, report)

        found = trials.map(
            [Part(f"Screen: {policy.title}", partial(screen, policy)) for policy in policies],
            part(progress, 0.0, 0.6),
        )
        starts: list[tuple[float, Policy, int]] = []  # cost, policy, index of the value to try
        for policy, (index, results) in zip(policies, found, strict=True):
            trials.record(policy, {
                self._trial(policy, i, trials.cases[case]): result for i, case, result in results
            })  # fmt: skip
            if index is not None:
                cost = trials.results[self._trial(policy, index, forecast_day)].cost_usd
                starts.append((cost, policy, index))
        starts.sort(key=lambda start: (start[0], start[1].traits.complexity, start[1].key))
        reports = split_progress(part(progress, 0.6, 1.0), len(starts))
        for (cost, policy, index), report in zip(starts, reports, strict=True):
            too_dear = not self._has_floor(policy) and cost > self._limit()
            if not too_dear and not self._cannot_win(policy, index):
                self._try(policy, index, report)
            else:
                self.first[policy.key] = index
                self.candidates.append(trials.candidate(policy, index, self.level))

    def _try(self, policy: Policy, index: int, progress: Progress) -> None:
        """Find the first parameter value from ``index`` on that passes, and record the candidate.

        If it is cheaper than the best so far, it becomes the best.
        """
        trials, at = self.trials, self._first_passing(policy, index, progress)
        if at is None:
            self.candidates.append(trials.candidate(policy, trials.last(policy), self.level))
            return
        self.first[policy.key] = at
        if self._cannot_win(policy, at):
            self.candidates.append(trials.candidate(policy, at, self.level))
            return
        at = self._last_with_same_schedules(policy, at, progress)
        candidate = trials.candidate(policy, at, self.level)
        self.candidates.append(candidate)
        usd = candidate.expected_cost_usd(trials.days)
        if self.best is None or usd < self.best.expected_cost_usd(trials.days):
            self.best = candidate

    def _screen(self, policy: Policy, limit: float, report: Progress) -> Screened:
        """Find the first parameter value that passes the hardest case and the forecast day.

        Returns its index (None if no value passes) and all results. A value that costs more than
        ``limit`` dollars on the forecast day ends the search.
        """
        trials, all_values = self.trials, values(policy, self.level)
        if self._has_floor(policy):
            limit = inf  # what it costs at least is known on all weighted days
        spare, (low, start) = trials.keeps_spare(policy, self.level), self._start(policy)
        lost = [case for _, case in self.checks if case.lost and spare]
        results = {} if limit < inf else self._start_results(policy, start, report)

        def result_on(index: int, case: Case, most: float) -> CaseResult:
            """Return the result on a case; its simulation may end at a cost of ``most`` dollars."""
            trial = self._trial(policy, index, case)
            if trial not in results:
                tried = {other: its for other, (_, _, its) in results.items()}
                alike = trials.result_of_same_decisions(policy, trial, tried)
                result = alike or trials.results.get(trial)
                if result is None or 0 < result.dear < most - CENT:
                    day = results.get(replace(trial, case=trials.cases[0]))
                    result = trials.simulate(
                        policy, trial, report, limit=most, known=None if day is None else day[2]
                    )
                results[trial] = index, trials.cases.index(case), result
            return results[trial][2]

        def passes_hardest(index: int) -> bool:
            result = result_on(index, self.checks[0][1], DEAR * limit)
            return bool(result.dear) or result.passes

        def survives(index: int) -> bool:
            """Return whether a value passes the forecast day after a loss, if N+1 is required."""
            return all(result_on(index, case, inf).passes for case in lost)

        def ends_search(index: int) -> bool:
            """Return whether a value passes both days, costs too much, or cannot win."""
            forecast_day = trials.cases[0]
            if self._cannot_win(policy, index):
                trial = self._trial(policy, index, forecast_day)
                if trial not in trials.results:
                    results[trial] = index, 0, CaseResult(inf, {}, 1.0, cut=True, dear=limit)
                return True
            kept_usd = trials.min_cost_usd(policy, self._trial(policy, index, forecast_day))
            # The cost of a plan is known, so a harder day that it fails needs no forecast day. Nor
            # does a loss, if all losses are alike.
            only_plan = policy.traits.plan is not None and not policy.traits.may_exceed_plan
            if only_plan and 0 < kept_usd <= limit:
                alike = len(losses_of(trials.study)) == 1
                if not passes_hardest(index) or (alike and not survives(index)):
                    return False
            result = result_on(index, forecast_day, limit)
            passes = result.passes and survives(index) and passes_hardest(index)
            return bool(result.dear) or passes

        # A cost above the limit shows on the forecast day first, and N+1 is judged there.
        index = bisect_first(ends_search, low, len(all_values), start)
        return index if index < len(all_values) else None, list(results.values())

    def _has_floor(self, policy: Policy) -> bool:
        """Return whether the cost of the replicas that a policy always keeps is known."""
        trial = self._trial(policy, 0, self.trials.cases[0])
        return policy.name != STATIC and self.trials.has_floor(policy, trial)

    def _start_results(
        self, policy: Policy, start: int | None, report: Progress
    ) -> dict[Trial, tuple[int, int, CaseResult]]:
        """Simulate the value ``start`` on the forecast day and the hardest case, side by side.

        The value passed at the level below. The loss of a replica is added if all losses are alike,
        since it then needs no result of another day. The result is empty if there is nothing to
        simulate.
        """
        trials = self.trials
        if self.below is None or start is None or self._cannot_win(policy, start):
            return {}
        cases = [trials.cases[0], self.checks[0][1]]
        if trials.keeps_spare(policy, self.level) and len(losses_of(trials.study)) == 1:
            cases += [case for _, case in self.checks if case.lost]
        ahead = [*dict.fromkeys(self._trial(policy, start, case) for case in cases)]
        if ahead[0] in trials.results:
            return {}
        steps = [partial(trials.simulate, policy, trial) for trial in ahead]
        found = zip(ahead, run_in_parallel(steps, report, at_once=trials.at_once), strict=True)
        return {trial: (start, trials.cases.index(trial.case), its) for trial, its in found}

    def _start(self, policy: Policy) -> tuple[int, int | None]:
        """Return the lowest index of a value that may pass, and the index to try first.

        None for the latter means any.
        """
        if self.below is None or policy.key not in self.below.first:
            return 0, _usual_start(policy, values(policy, self.level))
        start = self.below.first[policy.key]
        keeps_spare = self.trials.keeps_spare
        same_plans = keeps_spare(policy, self.level) == keeps_spare(policy, self.below.level)
        # Smaller values fail at the level below, which requires fewer days.
        return start if same_plans else 0, start

    def _first_passing(self, policy: Policy, low: int, progress: Progress) -> int | None:
        """Return the index of the first value from ``low`` on that passes every required case.

        Returns None if no value passes. A value from which on the policy cannot win ends the
        search, and its index is returned. After a failed case, the search continues on that case
        alone. Then all cases are checked again at the value found.
        """
        checks, count, index = list(self.checks), len(values(policy, self.level)), low

        def passes_hardest(index: int) -> bool:
            beaten = self._cannot_win(policy, index)
            return beaten or self._first_failed_check(policy, index, checks[:1], progress) is None

        while index < count and not self._cannot_win(policy, index):
            at = self._first_failed_check(policy, index, checks, progress)
            if at is None:
                break
            checks.insert(0, checks.pop(at))
            index = bisect_first(passes_hardest, index + 1, count, index + 1)
        if index >= count:
            return None
        if self._cannot_win(policy, index):
            return index
        weighted = [i for i, day in enumerate(self.trials.days) if day.weight]
        self.trials.measure(policy, index, self.level, weighted, progress)
        return index

    def _last_with_same_schedules(self, policy: Policy, index: int, progress: Progress) -> int:
        """Return the index of the last value whose plans equal those of ``index`` on all its days.

        It costs the same, and is the safest of them if the demand changes.
        """
        trials = self.trials
        cases = [case for _, case in self.checks]
        cases += [case for day in trials.days if day.weight for case in day.cases]

        def differs(other: int) -> bool:
            pairs = ((self._trial(policy, i, case) for i in (index, other)) for case in cases)
            return not all(trials.have_same_schedule(policy, *pair) for pair in pairs)

        last = bisect_first(differs, index + 1, len(values(policy, self.level)), index + 1) - 1
        known = [case for case in cases if self._trial(policy, index, case) in trials.results]
        trials.simulate_all(policy, [self._trial(policy, last, case) for case in known], progress)
        return last

    def _first_failed_check(
        self, policy: Policy, index: int, checks: Sequence[Check], progress: Progress
    ) -> int | None:
        """Return the index of the first of ``checks`` that a value fails, or None.

        A few checks are simulated at a time.
        """
        all_trials = [self._trial(policy, index, case) for _, case in checks]
        for i, trial in enumerate(all_trials):
            open_trials = self.trials.without_result(all_trials[i:])
            if trial in open_trials:
                self.trials.simulate_all(policy, open_trials[:DEFAULT_THREADS], progress)
            if not self.trials.results[trial].passes:
                return i
        return None

    def _nearest(self, policies: Sequence[Policy], progress: Progress) -> list[Candidate]:
        """Return the candidates that were near to passing when tried, also the nearest.

        Each policy is tried with its safest value. It is given up as soon as a day is worse, by
        more than ``NEAR``, than the worst day of the nearest policy so far.
        """
        trials = self.trials
        required = [i for i, day in enumerate(trials.days) if day.required_at(self.level)]
        weighted = [i for i, day in enumerate(trials.days) if day.weight]
        candidates: list[Candidate] = []
        lowest = inf
        for policy, report in zip(policies, split_progress(progress, len(policies)), strict=True):
            worst, last = 0.0, trials.last(policy)
            for day in list(required):
                trials.measure(policy, last, self.level, [day], report)
                result = trials.candidate(policy, last, self.level).on(day, trials.days[day])
                worst = max(worst, 1.0 if result is None else result.shortfall)
                if worst >= lowest + NEAR:
                    required.insert(0, required.pop(required.index(day)))  # the hardest first
                    break
            else:
                lowest = min(lowest, worst)
                trials.measure(policy, last, self.level, weighted, report)
                candidates.append(trials.candidate(policy, last, self.level))
        return candidates


def _usual_start(policy: Policy, all_values: Sequence[float | None]) -> int | None:
    """Return the index of the parameter value at which a search starts; None: in the middle."""
    if policy.traits.may_exceed_plan:
        return 0  # a guard adds the replicas that a low plan lacks
    parameter = policy.parameter_to_tune
    default = None if parameter is None else getattr(policy, parameter.field)
    if parameter is None or not default:
        return None
    return min(range(len(all_values)), key=lambda i: abs(log(parameter.values[i] / default)))


def _excess_over_forecast(case: Case, expected: float) -> float:
    """Return how much a case exceeds the forecast: its peak over ``expected``.

    ``expected`` is the peak of the forecast day. It is 1 for a window of the past, of which
    policies have a forecast too, and infinite for a fault, which is a case without sizing.
    """
    if case.sizing is None:
        return inf
    return _peak_replicas(case) / expected if case.drawn else 1.0


def _peak_replicas(case: Case) -> float:
    """Return the replicas of a static fleet sized for a case's peak, at least 1."""
    study = (case.sizing or case.study)()
    return max(1.0, float(study.pools(study.peak).sum()))
