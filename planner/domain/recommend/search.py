"""Search the candidate that each level of assurance recommends.

A candidate is a policy with one value of its tuned parameter. The values of a policy are ordered
from the cheapest to the safest, and are named by their index in that order. A value that meets the
SLOs on a day is assumed to be followed only by values that meet them too. Each policy is searched
in three steps:

1. Screen it: find the first value that passes the hardest required case and the forecast day.
2. Raise the value until it passes every required case. Policies that were cheap on the forecast day
   go first.
3. Of the values with equal schedules, take the safest.

A policy is left out where it cannot win: if the replicas that it always keeps already cost too much
on the weighted days, compared with the best candidate so far, or if it always keeps none and costs
over TIE more on the forecast day.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import inf, log

from planner.domain.parallel import DEFAULT_THREADS
from planner.domain.progress import Progress, part, split_progress
from planner.domain.recommend.rule import NEAR, TIE, Candidate, CaseResult, Choice, recommend
from planner.domain.recommend.test_days import Case
from planner.domain.recommend.trials import STATIC, Trial, Trials, TunedPolicy, values
from planner.domain.replay.replica_loss import losses_of
from planner.domain.run_parts import Part
from planner.inputs.scenario.schema.test_days import LEVELS
from planner.policies.base import Policy
from planner.policies.registry import simplicity
from simulation.bisection import bisect_first

HARDER_DAY_LIMIT = 1.5  # factor on the cost limit, up to which the hardest day is simulated
CENT = 0.005  # dollars, of rounding

# The index of the first value that passes (None: no value passes), and results as (index of the
# value, index of the case, result): numbers, because another process may have screened the policy.
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
    candidates: list[Candidate] = []
    below: LevelSearch | None = None
    for level, name in enumerate(LEVELS):
        checks = required_cases(trials, level)
        # A level that requires the same cases as the one below has the same candidates.
        if below is None or checks != below.checks:
            is_shown = shown is None or checks == required_cases(trials, shown)
            below = LevelSearch(trials, level, checks, below, omits_static=not is_shown)
            report = part(trials.progress, level / len(LEVELS), (level + 1) / len(LEVELS))
            candidates = below.run(deployable, report)
        choice = recommend(candidates, trials.days, level)
        if choice is not None:
            yield name, (choice, candidates)


def required_cases(trials: Trials, level: int) -> list[Case]:
    """Return the cases that a level of assurance requires, the hardest first.

    The hardest exceeds the forecast most. Among equals, the one with more requests comes first.
    """
    cases = [
        case for day in trials.days if day.required_at(level) for case in day.cases if case.required
    ]
    expected = _peak_replicas(trials.forecast_day)
    hardness = {
        case: (_excess_over_forecast(case, expected), len(case.study().trace)) for case in cases
    }
    return sorted(cases, key=lambda case: hardness[case], reverse=True)


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
    return max(1.0, float(study.counts_by_pool(study.peak).sum()))


@dataclass(eq=False)
class LevelSearch:
    """The search for the cheapest policy that passes ``checks``, which one level requires.

    ``below`` is the search at the next lower level; None at the lowest. ``omits_static`` leaves out
    the static fleet if it costs too much at the level below. ``best`` is the cheapest candidate so
    far that passes. It need not win: a simpler one within TIE of its cost would.
    """

    trials: Trials
    level: int
    checks: Sequence[Case]  # the hardest first
    below: "LevelSearch | None" = None
    omits_static: bool = False
    candidates: list[Candidate] = field(default_factory=list, init=False)
    best: Candidate | None = field(default=None, init=False)
    # By policy, the index of the first value that passes or costs too much. Smaller ones fail.
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
            # A guarded plan may be so cheap that the static fleet need not be searched.
            self._try_all(first_guarded, part(progress, 0.0, 0.1))
            first_guarded = []
            affordable_usd = min(self._forecast_day_limit(), self._min_static_cost())
            if self._static_fails(affordable_usd):
                self._try_all(guarded, part(progress, 0.1, 0.2))
                guarded = []
        static_cannot_win = self.omits_static and self._static_fails(self._forecast_day_limit())
        if static and not static_cannot_win:
            self.trials.size_static_fleet(self.level, part(progress, 0.2, 0.25))
            self._try_all(static, part(progress, 0.25, 0.3))
        self._try_all(first_guarded, part(progress, 0.3, 0.4))
        self._try_all(guarded, part(progress, 0.4, 0.7))
        self._try_all(others, part(progress, 0.7, 0.95))
        if self.best is None:
            return self._safest_candidates(policies, part(progress, 0.95, 1.0))
        return self.candidates

    def _static_fails(self, usd: float) -> bool:
        """Return whether static fleets of at most ``usd`` dollars are known not to pass."""
        return self._min_static_cost() > usd or self.trials.static_fails(self.level, usd)

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

    def _try_all(self, policies: Sequence[Policy], progress: Progress) -> None:
        """Screen ``policies``, and try those that may win, in the order of their cost.

        A policy that cannot win becomes a candidate as it was screened. It is dropped if screening
        found no value that passes.
        """
        trials, limit = self.trials, self._forecast_day_limit()
        screens = [
            Part(f"Screen: {policy.title}", Screening(self, policy, limit).run)
            for policy in policies
        ]
        screened = trials.map(screens, part(progress, 0.0, 0.6))
        # (cost on the forecast day, policy, index of the value to try first)
        starts: list[tuple[float, Policy, int]] = []
        for policy, (index, results) in zip(policies, screened, strict=True):
            trials.record(
                {
                    Trial(self.tuned(policy, i), trials.cases[case]): result
                    for i, case, result in results
                }
            )
            if index is not None:
                day = trials.results.get(Trial(self.tuned(policy, index), trials.forecast_day))
                starts.append((inf if day is None else day.cost_usd, policy, index))
        starts.sort(key=lambda start: (start[0], start[1].traits.complexity, start[1].key))
        reports = split_progress(part(progress, 0.6, 1.0), len(starts))
        for (cost_usd, policy, index), report in zip(starts, reports, strict=True):
            costs_too_much = not self.has_floor(policy) and cost_usd > self._forecast_day_limit()
            if costs_too_much or self.cannot_win(policy, index):
                self.first[policy.key] = index
                self.candidates.append(trials.candidate(self.tuned(policy, index)))
            else:
                self._try(policy, index, report)

    def _try(self, policy: Policy, index: int, progress: Progress) -> None:
        """Find the first parameter value from ``index`` on that passes, and record the candidate.

        If no value passes, the last one is recorded. A value that cannot win is recorded as it is.
        If the candidate is cheaper than the best so far, it becomes the best.
        """
        trials, first = self.trials, self._first_to_pass_or_end(policy, index, progress)
        if first is None:
            self.candidates.append(trials.candidate(self.tuned(policy, -1)))
            return
        self.first[policy.key] = first
        if self.cannot_win(policy, first):
            self.candidates.append(trials.candidate(self.tuned(policy, first)))
            return
        safest = self._last_with_same_schedules(policy, first, progress)
        candidate = trials.candidate(self.tuned(policy, safest))
        self.candidates.append(candidate)
        usd = candidate.expected_cost_usd(trials.days)
        if self.best is None or usd < self.best.expected_cost_usd(trials.days):
            self.best = candidate

    def _first_to_pass_or_end(self, policy: Policy, low: int, progress: Progress) -> int | None:
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
            checks.insert(0, checks.pop(failed))  # ``ends_search`` reads the first
            following = index + 1
            index = bisect_first(ends_search, following, count, start=following)
        if index >= count:
            return None
        if not self.cannot_win(policy, index):  # it passed, so its mean cost is needed
            days = self.trials.weighted_days
            self.trials.simulate_days(self.tuned(policy, index), days, progress)
        return index

    def _first_failed_check(
        self, policy: Policy, index: int, checks: Sequence[Case], progress: Progress
    ) -> int | None:
        """Return the position in ``checks`` of the first that value number ``index`` fails.

        Up to DEFAULT_THREADS checks are simulated at a time. Returns None if the value passes all,
        or as soon as the costs so far show that it cannot win.
        """
        all_trials = [Trial(self.tuned(policy, index), case) for case in checks]
        for position, trial in enumerate(all_trials):
            open_trials = self.trials.without_result(all_trials[position:])
            if trial in open_trials:
                if self.cannot_win(policy, index):
                    return None
                self.trials.simulate_all(open_trials[:DEFAULT_THREADS], progress)
            if not self.trials.results[trial].passes:
                return position
        return None

    def _last_with_same_schedules(self, policy: Policy, index: int, progress: Progress) -> int:
        """Return the index of the last value with the same schedules as value number ``index``.

        The schedules are compared on all required and all weighted days. Equal schedules cost the
        same, and the last value is the safest if the demand changes.
        """
        trials, tuned = self.trials, self.tuned(policy, index)
        cases = [*self.checks, *(case for day in trials.weighted_days for case in day.cases)]

        def differs(other: int) -> bool:
            """Return whether the schedule of value number ``other`` differs on any day."""
            return not all(
                trials.have_same_schedule(
                    Trial(tuned, case), Trial(self.tuned(policy, other), case)
                )
                for case in cases
            )

        count, following = len(values(policy, self.level)), index + 1
        last = bisect_first(differs, following, count, start=following) - 1
        # The results of equal schedules are known, so recording them for the last value is cheap.
        known = [case for case in cases if Trial(tuned, case) in trials.results]
        trials.simulate_all([Trial(self.tuned(policy, last), case) for case in known], progress)
        return last

    def _safest_candidates(self, policies: Sequence[Policy], progress: Progress) -> list[Candidate]:
        """Return the candidates that are nearest to passing, each with its policy's safest value.

        A policy is given up as soon as its shortfall on a day exceeds the smallest shortfall so far
        by ``NEAR``. So a candidate that was tried early may be less near than the others.
        """
        trials = self.trials
        required = [i for i, day in enumerate(trials.days) if day.required_at(self.level)]
        candidates: list[Candidate] = []
        smallest_shortfall = inf
        for policy, report in zip(policies, split_progress(progress, len(policies)), strict=True):
            worst_shortfall, safest = 0.0, self.tuned(policy, -1)
            for i in list(required):
                trials.simulate_days(safest, [trials.days[i]], report)
                result = trials.candidate(safest).on(i, trials.days[i])
                worst_shortfall = max(worst_shortfall, 1.0 if result is None else result.shortfall)
                if worst_shortfall >= smallest_shortfall + NEAR:
                    # The next policies are likely to fail this day too, so try it first.
                    required.insert(0, required.pop(required.index(i)))
                    break
            else:  # near on every required day
                smallest_shortfall = min(smallest_shortfall, worst_shortfall)
                trials.simulate_days(safest, trials.weighted_days, report)
                candidates.append(trials.candidate(safest))
        return candidates

    def tuned(self, policy: Policy, index: int) -> TunedPolicy:
        """Return the policy with parameter value number ``index``, as this level requires it."""
        return self.trials.tuned(policy, index, self.level)

    # What cannot win.

    def _forecast_day_limit(self) -> float:
        """Return the cost on the forecast day above which a policy cannot win, in dollars."""
        if self.best is None:
            return inf
        return self.trials.on_forecast_day(self.best) * (1 + TIE) + CENT

    def cannot_win(self, policy: Policy, index: int) -> bool:
        """Return whether the parameter value number ``index`` costs too much to win.

        Of two policies with equal cost (within TIE), the simpler one wins. So a less simple policy
        must be cheaper by more than TIE. A day that was not simulated counts with a lower bound of
        the policy's cost there. Without a best candidate so far, the result is False.
        """
        if self.best is None:
            return False
        trials, tuned = self.trials, self.tuned(policy, index)
        usd = self.best.expected_cost_usd(trials.days)
        wins_ties = simplicity(policy.key) < simplicity(self.best.policy)
        limit = usd * (1 + TIE) + CENT if wins_ties else usd / (1 + TIE) - CENT

        def lower_bound(case: Case) -> CaseResult:
            """Return the result of a case, or a lower bound if it was not simulated."""
            known = trials.results.get(Trial(tuned, case))
            if known is not None and known.cost_usd < inf:
                return known
            return CaseResult(trials.min_cost_usd(Trial(tuned, case)), {}, 0.0)

        # Judge the candidate with bounds as if they were its results.
        bounds = {
            i: tuple(lower_bound(case) for case in day.cases)
            for i, day in enumerate(trials.days)
            if day.weight
        }
        candidate = replace(trials.candidate(tuned), results=bounds)
        return candidate.expected_cost_usd(trials.days) >= limit

    def has_floor(self, policy: Policy) -> bool:
        """Return whether the cost of the replicas that a policy always keeps is known.

        False for the static fleet, whose size is not known before it is searched.
        """
        trial = Trial(self.tuned(policy, 0), self.trials.forecast_day)
        return policy.name != STATIC and self.trials.has_floor(trial)


@dataclass(eq=False)
class Screening:
    """The trials of a policy on the hardest case and on the forecast day of a level's ``search``.

    A value that costs more than ``max_usd`` dollars on the forecast day costs too much to win.
    """

    search: LevelSearch
    policy: Policy
    max_usd: float
    results: dict[Trial, CaseResult] = field(default_factory=dict, init=False)

    @cached_property
    def limit(self) -> float:
        """Return the cost limit on the forecast day; infinite if all weighted days are judged."""
        return inf if self.search.has_floor(self.policy) else self.max_usd

    def run(self, report: Progress) -> Screened:
        """Find the first parameter value that passes the hardest case and the forecast day.

        Returns its index and all results. The index is None if no value passes. A value that costs
        more than the limit on the forecast day ends the search, and its index is returned.
        """
        search, policy = self.search, self.policy
        all_values, (low, start) = values(policy, search.level), self._start()
        index = bisect_first(partial(self._ends_at, report), low, len(all_values), start)
        cases = search.trials.cases
        found = [
            (all_values.index(trial.tuned.value), cases.index(trial.case), result)
            for trial, result in self.results.items()
        ]
        return index if index < len(all_values) else None, found

    def _start(self) -> tuple[int, int | None]:
        """Return the lowest index of a value that may pass, and the index to try first.

        The second is None if the search may begin in the middle.
        """
        search, key = self.search, self.policy.key
        if search.below is None or key not in search.below.first:
            return 0, _usual_start(self.policy, values(self.policy, search.level))
        start, keeps_spare = search.below.first[key], search.trials.keeps_spare
        same_plans = keeps_spare(self.policy, search.level) == keeps_spare(
            self.policy, search.below.level
        )
        # Smaller values fail at the level below, which requires fewer days.
        return start if same_plans else 0, start

    def _ends_at(self, report: Progress, index: int) -> bool:
        """Return whether value number ``index`` passes both days, costs too much, or cannot win.

        To pass, it must also survive each loss of replicas (N+1) that the level requires.
        """
        if self.search.cannot_win(self.policy, index):
            return True
        trials, tuned = self.search.trials, self.search.tuned(self.policy, index)
        # Without a cost limit, a failed harder day saves the simulation of the forecast day.
        if self.limit == inf:
            # With several losses, the worst one is known only from the forecast day.
            one_loss = len(losses_of(trials.study)) == 1
            if not self._passes_hardest(tuned, report):
                return False
            if one_loss and not self._survives_losses(tuned, report):
                return False
        # A cost above the limit shows on the forecast day first, and N+1 is judged there.
        result = self._result_on(tuned, trials.forecast_day, self.limit, report)
        if result.stopped_at_usd:
            return True
        return (
            result.passes
            and self._survives_losses(tuned, report)
            and self._passes_hardest(tuned, report)
        )

    def _passes_hardest(self, tuned: TunedPolicy, report: Progress) -> bool:
        """Return whether a value passes the hardest case, or costs too much there to tell."""
        hardest = self.search.checks[0]
        result = self._result_on(tuned, hardest, HARDER_DAY_LIMIT * self.limit, report)
        return bool(result.stopped_at_usd) or result.passes

    def _survives_losses(self, tuned: TunedPolicy, report: Progress) -> bool:
        """Return whether a value passes the forecast day after a loss, if N+1 is required."""
        if not tuned.spare:
            return True
        lost = (case for case in self.search.checks if case.lost)
        return all(self._result_on(tuned, case, inf, report).passes for case in lost)

    def _result_on(
        self, tuned: TunedPolicy, case: Case, max_usd: float, report: Progress
    ) -> CaseResult:
        """Return the result on a case; the simulation ends at a cost of ``max_usd`` dollars."""
        trials, trial = self.search.trials, Trial(tuned, case)
        if trial not in self.results:
            known = trials.result_of_same_decisions(trial, self.results)
            known = known or trials.results.get(trial)
            # A simulation that ended at a lower cost limit is repeated.
            if known is None or 0 < known.stopped_at_usd < max_usd - CENT:
                known = trials.simulate(trial, report, limit=max_usd)
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
