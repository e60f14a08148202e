"""Search the candidate that each level of assurance recommends.

A candidate is a policy with one value of its tuned parameter. The values of a policy are ordered
from the cheapest to the safest, and are named by their index in that order.

All policies are first tried on the hardest day and the forecast day. Then each is tried on every
required day, the cheapest policy first. A policy is left out if it cannot win: the replicas that it
always keeps already cost too much on the weighted days, compared with the best candidate so far. If
a policy always keeps no replicas, it is left out if it costs over TIE more on the forecast day.
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

HARDER_DAY_LIMIT = 1.5  # factor on the cost limit, up to which the hardest day is simulated
UNDECIDED = 0.75  # share of a cost limit from which on plans are solved for a better bound
CENT = 0.005  # dollars, of rounding

Check = tuple[TestDay, Case]
# The index of the first value that passes (None: no value passes), and results as (index of the
# value, index of the case, result).
Screened = tuple[int | None, list[tuple[int, int, CaseResult]]]


def choices(
    trials: Trials, shown: int | None = None
) -> Iterator[tuple[str, tuple[Choice, list[Candidate]]]]:
    """Yield each level of assurance with its choice and all its candidates, the lowest level first.

    Policies that use future data are left out, and so are levels without a candidate. ``shown`` is
    the index of the level whose candidates the user sees. At other levels, the search omits a
    static fleet that cannot win. None: no level omits it.
    """
    deployable = [policy for policy in trials.policies if not policy.traits.uses_future_data]
    shown_checks = None if shown is None else LevelSearch(trials, shown).checks
    candidates: list[Candidate] = []
    below: LevelSearch | None = None
    for level, name in enumerate(LEVELS):
        report = part(trials.progress, level / len(LEVELS), (level + 1) / len(LEVELS))
        search = LevelSearch(trials, level, below)
        search.omits_static = shown_checks is not None and search.checks != shown_checks
        # A level that requires the same cases as the one below has the same candidates.
        if below is None or search.checks != below.checks:
            candidates = search.run(deployable, report)
            below = search
        choice = recommend(candidates, trials.days, level)
        if choice is not None:
            yield name, (choice, candidates)


@dataclass(eq=False)
class LevelSearch:
    """The search for the cheapest policy that passes at one level of assurance.

    ``below`` is the search at the next lower level; None at the lowest. ``omits_static`` leaves out
    the static fleet if it costs too much at the level below. ``best`` is the cheapest candidate so
    far that passes.
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
        """Return one candidate for each policy tried; if no policy passes, those near to passing.

        The static fleet is tried first, then the guarded plans, then the rest. The cost of the best
        so far limits the later ones. Of the guarded plans, the best one at the level below goes
        first. If the static fleet may be omitted, it is tried after that guarded plan, or after all
        guarded plans if it would then cost too much.
        """
        best_below = None if self.below is None else self.below.best
        static = [policy for policy in policies if policy.name == STATIC]
        guarded = [policy for policy in policies if policy.traits.may_exceed_plan]
        others = [policy for policy in policies if policy not in (*static, *guarded)]
        first_guarded = [
            policy for policy in guarded if best_below and policy.key == best_below.policy
        ]
        guarded = [policy for policy in guarded if policy not in first_guarded]
        if self.omits_static and self.below is not None:
            self._try_all(first_guarded, part(progress, 0.0, 0.1))
            first_guarded = []
            if self._static_fails(min(self._limit(), self._min_static_cost())):
                self._try_all(guarded, part(progress, 0.1, 0.2))
                guarded = []
        if static and not (self.omits_static and self._static_fails(self._limit())):
            self.trials.size_static_fleet(self.level, part(progress, 0.2, 0.25))
            self._try_all(static, part(progress, 0.25, 0.3))
        self._try_all(first_guarded, part(progress, 0.3, 0.4))
        self._try_all(guarded, part(progress, 0.4, 0.7))
        self._try_all(others, part(progress, 0.7, 0.95))
        if self.best is None:
            return self._nearest(policies, part(progress, 0.95, 1.0))
        return self.candidates

    @cached_property
    def checks(self) -> list[Check]:
        """Return the cases that the level requires as (day, case), the hardest first.

        The hardest exceeds the forecast most. Among equals, the one with more requests comes first.
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

        It is the cost of the fleet at a lower level, which requires fewer days. It is 0 if unknown.
        """
        if self.below is None:
            return 0.0
        costs = [
            self.trials.on_forecast_day(candidate)
            for candidate in self.below.candidates
            if candidate.policy == STATIC
        ]
        return next((cost for cost in costs if cost < inf), self.below._min_static_cost())

    def _static_fails(self, usd: float) -> bool:
        """Return whether static fleets of at most ``usd`` dollars are known not to pass."""
        return self._min_static_cost() > usd or self.trials.static_fails(self.level, usd)

    def _limit(self) -> float:
        """Return the cost on the forecast day above which a policy cannot win, in dollars."""
        if self.best is None:
            return inf
        return self.trials.on_forecast_day(self.best) * (1 + TIE) + CENT

    def cannot_win(self, policy: Policy, index: int) -> bool:
        """Return whether the parameter value number ``index`` costs too much to win.

        Of two policies with equal cost (within TIE), the simpler one wins. A day that was not
        simulated counts with a lower bound of the policy's cost there. Without a best candidate so
        far, the result is False.
        """
        if self.best is None:
            return False
        trials = self.trials

        def lower_bound(case: Case, solve: bool) -> CaseResult:
            """Return the result of a case, or a lower bound if it was not simulated."""
            trial = self.trial(policy, index, case)
            known = trials.results.get(trial)
            if known is not None and known.cost_usd < inf:
                return known
            return CaseResult(trials.min_cost_usd(trial, solve=solve), {}, 0.0)

        def bound(solve: bool) -> float:
            """Return a lower bound of the expected cost in dollars; closer if plans are solved."""
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
        # To solve plans is slow, so they are solved only if the first bound is near the limit.
        bound_without_plans = bound(solve=False)
        if UNDECIDED * limit <= bound_without_plans < limit:
            return bound(solve=True) >= limit
        return bound_without_plans >= limit

    def trial(self, policy: Policy, index: int, case: Case) -> Trial:
        """Return the trial of a case: the policy with its parameter value number ``index``."""
        return self.trials.trial(policy, index, self.level, case)

    def _last(self, policy: Policy) -> int:
        """Return the index of the safest (last) parameter value of a policy."""
        return len(values(policy, self.level)) - 1

    def _try_all(self, policies: Sequence[Policy], progress: Progress) -> None:
        """Screen ``policies`` on two days; then try those that may win on all required days.

        They are tried in the order of their cost on the forecast day.
        """
        trials, limit, forecast_day = self.trials, self._limit(), self.trials.cases[0]
        screens = [
            Part(f"Screen: {policy.title}", partial(self._screen, policy, limit))
            for policy in policies
        ]
        found = trials.map(screens, part(progress, 0.0, 0.6))
        starts: list[tuple[float, Policy, int]] = []  # cost, policy, index of the value to try
        for policy, (index, results) in zip(policies, found, strict=True):
            trials.record(
                {self.trial(policy, i, trials.cases[case]): result for i, case, result in results}
            )
            if index is not None:
                cost = trials.results[self.trial(policy, index, forecast_day)].cost_usd
                starts.append((cost, policy, index))
        starts.sort(key=lambda start: (start[0], start[1].traits.complexity, start[1].key))
        reports = split_progress(part(progress, 0.6, 1.0), len(starts))
        for (cost, policy, index), report in zip(starts, reports, strict=True):
            costs_too_much = not self._has_floor(policy) and cost > self._limit()
            if not costs_too_much and not self.cannot_win(policy, index):
                self._try(policy, index, report)
            else:
                self.first[policy.key] = index
                self.candidates.append(trials.candidate(policy, index, self.level))

    def _try(self, policy: Policy, index: int, progress: Progress) -> None:
        """Find the first parameter value from ``index`` on that passes, and record the candidate.

        If no value passes, the last one is recorded. If the candidate is cheaper than the best so
        far, it becomes the best.
        """
        trials, passing = self.trials, self._first_passing(policy, index, progress)
        if passing is None:
            self.candidates.append(trials.candidate(policy, self._last(policy), self.level))
            return
        self.first[policy.key] = passing
        if self.cannot_win(policy, passing):
            self.candidates.append(trials.candidate(policy, passing, self.level))
            return
        safest = self._last_with_same_schedules(policy, passing, progress)
        candidate = trials.candidate(policy, safest, self.level)
        self.candidates.append(candidate)
        usd = candidate.expected_cost_usd(trials.days)
        if self.best is None or usd < self.best.expected_cost_usd(trials.days):
            self.best = candidate

    def _screen(self, policy: Policy, limit: float, report: Progress) -> Screened:
        """Find the first parameter value that passes the hardest case and the forecast day.

        Returns its index and all results. The index is None if no value passes. A value that costs
        more than ``limit`` dollars on the forecast day ends the search, and its index is returned.
        """
        if self._has_floor(policy):
            limit = inf  # ``cannot_win`` judges it by all weighted days instead
        all_values, (low, start) = values(policy, self.level), self._start(policy)
        screening = Screening(self, policy, limit, report)
        if limit == inf:
            screening.results |= self._start_results(policy, start, report)
        index = bisect_first(screening.ends_at, low, len(all_values), start)
        found = [
            (all_values.index(trial.value), self.trials.cases.index(trial.case), result)
            for trial, result in screening.results.items()
        ]
        return index if index < len(all_values) else None, found

    def _has_floor(self, policy: Policy) -> bool:
        """Return whether the cost of the replicas that a policy always keeps is known.

        False for the static fleet, whose size is not known before it is searched.
        """
        trial = self.trial(policy, 0, self.trials.cases[0])
        return policy.name != STATIC and self.trials.has_floor(trial)

    def _start_results(
        self, policy: Policy, start: int | None, report: Progress
    ) -> dict[Trial, CaseResult]:
        """Simulate value number ``start`` on the forecast day and the hardest case, in parallel.

        ``start`` is the index of the value that passed at the level below; None if none did. A
        loss is simulated only if all losses are alike. Otherwise the result of the forecast day
        must first tell which one is the worst. The results are empty if nothing is simulated.
        """
        trials = self.trials
        if self.below is None or start is None or self.cannot_win(policy, start):
            return {}
        cases = [trials.cases[0], self.checks[0][1]]
        if trials.keeps_spare(policy, self.level):
            cases += [case for _, case in self.checks if case.lost]
        if len(losses_of(trials.study)) > 1:
            cases = [case for case in cases if not case.lost]
        to_simulate = [*dict.fromkeys(self.trial(policy, start, case) for case in cases)]
        if to_simulate[0] in trials.results:
            return {}
        steps = [partial(trials.simulate, trial) for trial in to_simulate]
        results = run_in_parallel(steps, report, at_once=trials.at_once)
        return dict(zip(to_simulate, results, strict=True))

    def _start(self, policy: Policy) -> tuple[int, int | None]:
        """Return the lowest index of a value that may pass, and the index to try first.

        The second is None if the search may begin in the middle.
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

        Returns None if no value passes. If a value costs too much to win, the search ends and
        returns its index. After a failed case, the search goes on with that case alone until a
        value passes it. Then all cases are checked again at that value.
        """
        checks, count, index = list(self.checks), len(values(policy, self.level)), low

        def ends_search(index: int) -> bool:
            """Return whether a value passes the case that failed last, or cannot win."""
            if self.cannot_win(policy, index):
                return True
            return self._first_failed_check(policy, index, checks[:1], progress) is None

        while index < count and not self.cannot_win(policy, index):
            failed = self._first_failed_check(policy, index, checks, progress)
            if failed is None:
                break
            checks.insert(0, checks.pop(failed))
            index = bisect_first(ends_search, index + 1, count, index + 1)
        if index >= count:
            return None
        if self.cannot_win(policy, index):
            return index
        weighted = [i for i, day in enumerate(self.trials.days) if day.weight]
        self.trials.measure(policy, index, self.level, weighted, progress)
        return index

    def _last_with_same_schedules(self, policy: Policy, index: int, progress: Progress) -> int:
        """Return the index of the last value with the same schedules as value number ``index``.

        The schedules are compared on all required and all weighted days. Equal schedules cost the
        same, and the last value is the safest if the demand changes.
        """
        trials = self.trials
        cases = [case for _, case in self.checks]
        cases += [case for day in trials.days if day.weight for case in day.cases]

        def differs(other: int) -> bool:
            """Return whether the schedule of value number ``other`` differs on any day."""
            return not all(
                trials.have_same_schedule(
                    self.trial(policy, index, case), self.trial(policy, other, case)
                )
                for case in cases
            )

        last = bisect_first(differs, index + 1, len(values(policy, self.level)), index + 1) - 1
        known = [case for case in cases if self.trial(policy, index, case) in trials.results]
        trials.simulate_all([self.trial(policy, last, case) for case in known], progress)
        return last

    def _first_failed_check(
        self, policy: Policy, index: int, checks: Sequence[Check], progress: Progress
    ) -> int | None:
        """Return the position in ``checks`` of the first that a parameter value fails, or None.

        ``index`` is the number of the value. Up to DEFAULT_THREADS checks are simulated at a time.
        The rest is left out, and the result is None, once their costs show that it cannot win.
        """
        all_trials = [self.trial(policy, index, case) for _, case in checks]
        for i, trial in enumerate(all_trials):
            open_trials = self.trials.without_result(all_trials[i:])
            if trial in open_trials:
                if self.cannot_win(policy, index):
                    return None
                self.trials.simulate_all(open_trials[:DEFAULT_THREADS], progress)
            if not self.trials.results[trial].passes:
                return i
        return None

    def _nearest(self, policies: Sequence[Policy], progress: Progress) -> list[Candidate]:
        """Return the candidates that are nearest to passing, each with its policy's safest value.

        A policy is given up as soon as its shortfall on a day exceeds the smallest shortfall so far
        by ``NEAR``. So a candidate that was tried early may be less near than the others.
        """
        trials = self.trials
        required = [i for i, day in enumerate(trials.days) if day.required_at(self.level)]
        weighted = [i for i, day in enumerate(trials.days) if day.weight]
        candidates: list[Candidate] = []
        lowest = inf
        for policy, report in zip(policies, split_progress(progress, len(policies)), strict=True):
            worst, last = 0.0, self._last(policy)
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


@dataclass(eq=False)
class Screening:
    """The trials of a policy on the hardest case and on the forecast day of a level's ``search``.

    A value that costs more than ``limit`` dollars on the forecast day costs too much to win.
    """

    search: LevelSearch
    policy: Policy
    limit: float
    report: Progress
    results: dict[Trial, CaseResult] = field(default_factory=dict)

    def ends_at(self, index: int) -> bool:
        """Return whether a value passes both days, costs too much, or cannot win.

        Records a result for the forecast day in any of these cases. ``index`` is that of the value.
        """
        search, trials = self.search, self.search.trials
        forecast_day = trials.cases[0]
        trial = search.trial(self.policy, index, forecast_day)
        if search.cannot_win(self.policy, index):
            if trial not in trials.results:
                self.results[trial] = CaseResult(stopped_at_usd=self.limit)
            return True
        # If the cost is known before, a failed harder day saves the simulation of this one.
        if self._cost_is_known(trial):
            one_loss = len(losses_of(trials.study)) == 1  # else the forecast day tells the worst
            if not self._passes_hardest(index) or (one_loss and not self._survives_losses(index)):
                return False
        # A cost above the limit shows on the forecast day first, and N+1 is judged there.
        result = self._result_on(index, forecast_day, self.limit)
        if result.stopped_at_usd:
            return True
        return result.passes and self._survives_losses(index) and self._passes_hardest(index)

    def _cost_is_known(self, trial: Trial) -> bool:
        """Return whether the policy only follows a plan, whose cost is within the limit."""
        traits = self.policy.traits
        if traits.plan is None or traits.may_exceed_plan:
            return False
        return 0 < self.search.trials.min_cost_usd(trial) <= self.limit

    def _passes_hardest(self, index: int) -> bool:
        """Return whether a value passes the hardest case, or costs too much there to tell."""
        _, hardest = self.search.checks[0]
        result = self._result_on(index, hardest, HARDER_DAY_LIMIT * self.limit)
        return bool(result.stopped_at_usd) or result.passes

    def _survives_losses(self, index: int) -> bool:
        """Return whether a value passes the forecast day after a loss, if N+1 is required."""
        search = self.search
        if not search.trials.keeps_spare(self.policy, search.level):
            return True
        lost = (case for _, case in search.checks if case.lost)
        return all(self._result_on(index, case, inf).passes for case in lost)

    def _result_on(self, index: int, case: Case, max_usd: float) -> CaseResult:
        """Return the result on a case; the simulation ends at a cost of ``max_usd`` dollars."""
        trials, trial = self.search.trials, self.search.trial(self.policy, index, case)
        if trial not in self.results:
            known = trials.result_of_same_decisions(trial, self.results)
            known = known or trials.results.get(trial)
            # A simulation that ended at a lower cost limit is repeated.
            if known is None or 0 < known.stopped_at_usd < max_usd - CENT:
                known = trials.simulate(
                    trial,
                    self.report,
                    limit=max_usd,
                    known=self.results.get(replace(trial, case=trials.cases[0])),
                )
            self.results[trial] = known
        return self.results[trial]


def _usual_start(policy: Policy, all_values: Sequence[float | None]) -> int | None:
    """Return the index of the policy's default parameter value, at which a search starts.

    It is 0 for a guarded plan. Without a default, return None: the search starts in the middle.
    """
    if policy.traits.may_exceed_plan:
        return 0  # a guard adds the replicas that a low plan lacks
    parameter = policy.parameter_to_tune
    default = None if parameter is None else getattr(policy, parameter.field)
    if parameter is None or not default:
        return None
    return min(range(len(all_values)), key=lambda i: abs(log(parameter.values[i] / default)))


def _excess_over_forecast(case: Case, expected: float) -> float:
    """Return the peak of a case divided by that of the forecast day (``expected``), in replicas.

    A past window gives 1, because policies have a forecast of it too. A case on which no static
    fleet can be sized, such as a lost region, is infinitely hard.
    """
    if case.sizing is None:
        return inf
    return _peak_replicas(case) / expected if case.drawn else 1.0


def _peak_replicas(case: Case) -> float:
    """Return the replicas of a static fleet sized for a case's peak, at least 1."""
    study = (case.sizing or case.study)()
    return max(1.0, float(study.pools(study.peak).sum()))
