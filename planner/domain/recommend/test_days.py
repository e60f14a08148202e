"""Build the test days of a study from their declarations in the scenario.

Most days change the *forecast day*: the drawn day of median size. So they contain the growth that
the forecast expects. No policy knows of the change before it happens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial

import numpy as np

from planner.domain.planning.planning import static_at_peak
from planner.domain.replay.backtest_windows import past_studies
from planner.domain.study import Study
from planner.domain.traffic.changes import busier, longer_outputs, scale_demand
from planner.domain.traffic.demand import Demand
from planner.domain.traffic.drawn_days import (
    DrawnDays,
    busiest_hours,
    draw_days,
    requests_of_path,
    with_path,
)
from planner.domain.traffic.traffic import AMOUNTS
from planner.domain.traffic.window import HOUR_S, Window
from planner.domain.traffic.window_rank import span_words
from planner.domain.verification.profile_error import slower_or_faster, stated_error
from planner.inputs.scenario.schema import test_days as schema
from simulation.arrays import IntArray
from simulation.faults import FailedStarts, RegionOutage
from simulation.fleet import Fleet, Pool
from simulation.trace import Trace

# 90% quantile of a half-normal error over its mean. At least half of the errors are below the mean.
NINE_OF_TEN = 2.06
PATHS = 100  # drawn days from which the forecast day is taken if the scenario has none
MEDIAN = 0.5
# Simulated percentiles of the drawn days, with their weights in the mean cost: the 30-40-30 rule
# (Hurst, Brown & Swanson 2000, AAPG Bulletin 84:1883).
PERCENTILES = {0.1: 0.3, MEDIAN: 0.4, 0.9: 0.3}


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """One simulated day of a test day.

    Test days that share a case share its results, and cases that share ``study`` share plans. So
    cases and their functions are compared by identity, and each is made once.

    ``study()`` returns its inputs. ``unexpected`` changes the fleet after the policy was built, so
    the policy does not know of it. ``sizing()`` returns the study on which a static fleet is sized
    for the case; None if no fleet can be sized for it. ``lost`` says that the worst loss of
    replicas is simulated (``losses_of``). ``weight`` is the weight of its cost within its test day.
    Only ``required`` cases decide whether the day is passed.
    """

    study: Callable[[], Study]
    unexpected: Callable[[Fleet], Fleet] | None = None
    sizing: Callable[[], Study] | None = None
    weight: float = 1.0
    required: bool = True
    drawn: bool = True  # from the forecast, maybe changed; else a past window
    lost: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class TestDay:
    """A test of policies: to pass, every tier must meet its target in each required case.

    ``level`` is the index of the lowest level of assurance that requires it; None: no level.
    ``weight`` is the weight of its cost in the expected cost. ``pass_share`` is the share of the
    days drawn from the forecast that a passing policy serves. ``reason`` says why the day does not
    apply; "" if it applies.
    """

    __test__ = False  # pytest must not collect it, although its name begins with "Test"

    name: str
    kind: str
    parameters: dict[str, float | str]
    weight: float
    level: int | None
    cases: tuple[Case, ...]
    pass_share: float = 1.0
    reason: str = ""

    def required_at(self, level: int) -> bool:
        """Return whether the day has to be passed at ``level`` of assurance."""
        return bool(self.cases) and self.level is not None and self.level <= level


@dataclass(eq=False)
class TestDays:
    """The test days of a study, as the scenario declares them.

    Most of them change the forecast day: a day drawn from the forecast with a median peak.
    """

    __test__ = False

    study: Study
    declared: Sequence[schema.TestDay]
    seed: int
    _percentiles: dict[float, Case] = field(default_factory=dict, init=False)

    @cached_property
    def all_days(self) -> tuple[TestDay, ...]:
        """Return all test days, in the order of the scenario.

        If no day has a weight, the forecast day is added, because costs are compared on weighted
        days.
        """
        days = [day for declared in self.declared for day in self._days(declared)]
        if not any(day.weight and day.cases for day in days):
            days.append(TestDay("Forecast day", "drawn", {}, 1.0, 0, (self.forecast_day,)))
        return tuple(days)

    def spare_at(self, level: int) -> bool:
        """Return whether candidates must plan a spare replica at ``level`` of assurance.

        They must if it requires a test day on which a replica is lost, and a tier is interactive.
        """
        if all(tier.deferrable for tier in self.study.hardware.tiers):
            return False
        for day in self.declared:
            if isinstance(day, schema.ReplicaLost):
                lowest_level = schema.level_of(day)  # that requires the day; None: no level
                if lowest_level is not None and lowest_level <= level:
                    return True
        return False

    @cached_property
    def past(self) -> tuple[Study, ...]:
        """Return the past windows of the study, at most three: see ``past_windows``."""
        return past_studies(self.study)

    @cached_property
    def drawn_paths(self) -> DrawnDays:
        """Return the days drawn from the forecast, each as one path of the demand over time."""
        paths = max((d.paths for d in self.declared if isinstance(d, schema.Drawn)), default=PATHS)
        study = self.study
        method = study.settings.plan.forecast.method
        return draw_days(study.traffic, study.window, method, paths, self.seed)

    @cached_property
    def forecast_day(self) -> Case:
        """Return the drawn day whose busiest hour is the median of all drawn days."""
        return self._percentile(MEDIAN)

    @cached_property
    def _order(self) -> IntArray:
        """Return the indices of the drawn paths by rising demand in their busiest hour."""
        busiest = busiest_hours(self.study.traffic.demand, self.study.window, self.drawn_paths)
        return np.argsort(busiest, kind="stable")

    def _percentile(self, share: float) -> Case:
        """Return the drawn day whose busiest hour is at this percentile of all drawn days.

        ``share`` is the percentile as a fraction.
        """
        if share not in self._percentiles:
            path = int(self._order[int(np.ceil(share * len(self._order) - 1e-9)) - 1])
            make = cache(partial(self.path, path))
            weight = PERCENTILES.get(share, 0.0)
            self._percentiles[share] = Case(make, sizing=make, weight=weight)
        return self._percentiles[share]

    def path(self, path: int) -> Study:
        """Return the study with the traffic of drawn day number ``path`` in its window."""
        study, days = self.study, self.drawn_paths
        # Requests arrive within bins as on the last past window; without one, there is no pattern.
        pattern = self.past[0].trace if self.past else study.trace.rows(slice(0))
        trace = requests_of_path(
            study.traffic, study.window, days, path, pattern, self.seed, cells=study.cells
        )
        demand = with_path(study.traffic.demand, days, path)
        carried = self.past[0].carried if self.past else None
        return replace(with_other_traffic(study, trace, demand), carried=carried)

    def _days(self, declared: schema.TestDay) -> list[TestDay]:
        """Return the test days of a declaration: one, or one for each past window."""
        match declared:
            case schema.Past():
                return self._past_days(declared)
            case schema.Drawn():
                cases = self._drawn_cases(declared.pass_share)
                return [_test_day(declared, "Drawn from the forecast", cases)]
            case schema.SlowerProfile():
                return [self._slower_day(declared)]
            case schema.MoreDemand():
                cases = [self._busier_case(declared.times)]
                return [_test_day(declared, f"Demand x {declared.times:g}", cases)]
            case schema.Crowd():
                name = f"Traffic spike: x {declared.times:g} for {declared.hours:g} h"
                cases = [self._busier_case(declared.times, declared.hours)]
                return [_test_day(declared, name, cases)]
            case schema.LongerOutputs():
                cases = [self._longer_outputs_case(declared.times)]
                return [_test_day(declared, f"Outputs x {declared.times:g}", cases)]
            case schema.ReplicaLost():
                name = "Replica lost (N+1)"
                if all(tier.deferrable for tier in self.study.hardware.tiers):
                    return [_test_day(declared, name, reason="No tier is interactive.")]
                return [_test_day(declared, name, [replace(self.forecast_day, lost=True)])]
            case schema.RegionLost():
                return [self._day_without_region(declared)]
            case schema.SlowStart():
                change = partial(_slow_and_failed_starts, factor=declared.times)
                # A static fleet starts nothing, so it has the size for the unchanged forecast day.
                case = Case(self.forecast_day.study, change, self.forecast_day.sizing)
                return [_test_day(declared, f"Starts x {declared.times:g}, first fails", [case])]

    def _past_days(self, declared: schema.Past) -> list[TestDay]:
        """Return a test day for each past window, at most as many as declared."""
        past = self.past[: declared.windows]
        if not past:
            return [_test_day(declared, "Past days", reason="The traffic has no earlier window.")]
        clock = self.study.traffic.clock
        days = []
        for i, study in enumerate(past):
            make = partial(past.__getitem__, i)
            name = f"Past: {span_words(study.window.start_s, study.window.end_s, clock)}"
            day = _test_day(declared, name, [Case(make, sizing=make, drawn=False)])
            days.append(replace(day, name=f"{declared.name} {i + 1}") if declared.name else day)
        return days

    def _drawn_cases(self, pass_share: float) -> list[Case]:
        """Return percentiles of the days drawn from the forecast as cases, the busiest first.

        One case is the day at the percentile ``pass_share``. A policy that serves it is assumed to
        serve all days that are less busy. Busier days only count in the cost.
        """
        shares = sorted({*PERCENTILES, pass_share}, reverse=True)
        return [
            replace(self._percentile(share), required=False)
            if share > pass_share
            else self._percentile(share)
            for share in shares
        ]

    def _slower_day(self, declared: schema.SlowerProfile) -> TestDay:
        """Return the day on which replicas are slower by their stated error, or nine of ten."""
        factor = 1.0 if declared.error == "half" else NINE_OF_TEN
        hardware = self.study.hardware
        # Keys are (model, GPU column), as in ``hardware.profiles``.
        errors = {
            key: factor * error.value
            for key, profile in hardware.profiles.items()
            if (error := stated_error(profile)) is not None
        }
        if not errors:
            reason = "No profile states an error."
            return _test_day(declared, "Profile slower", reason=reason)
        slower = {
            key: slower_or_faster(profile, errors[key], sign=1) if key in errors else profile
            for key, profile in hardware.profiles.items()
        }

        # A pool holds the profile object itself, so its identity finds the slower one.
        slower_of = {id(profile): slower[key] for key, profile in hardware.profiles.items()}

        def change(fleet: Fleet) -> Fleet:
            """Return the fleet with the slower profiles."""
            pools = tuple(
                replace(pool, profile=slower_of.get(id(pool.profile), pool.profile))
                for pool in fleet.pools
            )
            return replace(fleet, pools=pools)

        @cache
        def sizing() -> Study:
            """Return the forecast day with the slower profiles, to size static fleets on."""
            study = self.forecast_day.study()
            return replace(study, hardware=replace(study.hardware, profiles=slower))

        name = f"Profile slower by {max(errors.values()):.0%}"
        return _test_day(declared, name, [Case(self.forecast_day.study, change, sizing)])

    def _busier_case(self, factor: float, hours: float = np.inf) -> Case:
        """Return the forecast day with ``factor`` times the requests in its busiest ``hours``.

        Without ``hours``, the whole day gets busier.
        """

        @cache
        def busier_day() -> Study:
            study, when = self.forecast_day.study(), self._busiest_hours(hours)
            trace = busier(study.trace, factor, when.start_s, when.end_s, study.window, self.seed)
            demand = scale_demand(study.traffic.demand, AMOUNTS, factor, when.start_s, when.end_s)
            return with_other_traffic(study, trace, demand)

        return Case(busier_day, sizing=busier_day)

    def _busiest_hours(self, hours: float) -> Window:
        """Return the busiest ``hours`` of the forecast day as a window, or all of a shorter day."""
        study = self.forecast_day.study()
        window, trace = study.window, study.trace
        length_s = min(hours * HOUR_S, window.duration_s)
        # Spans that begin every five minutes, or after each other if they are shorter.
        starts = np.arange(0.0, window.duration_s - length_s + 1e-6, min(300.0, length_s))
        first, end = np.searchsorted(trace.arrival_s, np.stack([starts, starts + length_s]))
        busiest_s = window.start_s + float(starts[int(np.argmax(end - first))])
        return replace(window, start_s=busiest_s, end_s=busiest_s + length_s)

    def _longer_outputs_case(self, factor: float) -> Case:
        """Return the forecast day with outputs ``factor`` times as long in its second half."""

        @cache
        def longer_day() -> Study:
            study = self.forecast_day.study()
            middle_s = study.window.start_s + study.window.duration_s / 2
            trace = longer_outputs(study.trace, factor, study.window.duration_s / 2)
            demand = scale_demand(
                study.traffic.demand, ("output_tokens",), factor, middle_s, study.window.end_s
            )
            return with_other_traffic(study, trace, demand)

        return Case(longer_day, sizing=longer_day)

    def _day_without_region(self, declared: schema.RegionLost) -> TestDay:
        """Return the day on which a region is lost at the peak; one case for each region."""
        regions = self.study.hardware.regions
        if len(regions) < 2:
            return _test_day(declared, "Region lost", reason="The scenario has one region.")
        peak, begin = self._busiest_hours(declared.hours), self.study.window.start_s
        cases = []
        for region in regions:
            outage = RegionOutage(region.name, peak.start_s - begin, peak.end_s - begin)
            cases.append(Case(self.forecast_day.study, partial(_with_fault, fault=outage)))
        return _test_day(declared, f"Region lost for {declared.hours:g} h", cases)


def _test_day(
    declared: schema.TestDay, usual_name: str, cases: Sequence[Case] = (), reason: str = ""
) -> TestDay:
    """Return the test day of a declaration, with its cases or the reason why it does not apply.

    It has its ``usual_name`` if the declaration has none.
    """
    return TestDay(
        name=declared.name or usual_name,
        kind=declared.kind,
        parameters=declared.model_dump(exclude={"kind", "name", "weight", "required"}),
        weight=declared.weight,
        level=schema.level_of(declared),
        cases=tuple(cases),
        pass_share=declared.pass_share if isinstance(declared, schema.Drawn) else 1.0,
        reason=reason,
    )


def with_other_traffic(study: Study, trace: Trace, demand: Demand) -> Study:
    """Return the study with other traffic in its window, which policies see only as it arrives."""
    traffic = replace(study.traffic, demand=demand)
    # Sizes of later periods come from lengths that policies must not know ahead.
    sizes = replace(study.sizes, later=(), of_period=None)
    changed_study = replace(study, traffic=traffic, sizes=sizes, trace=trace)
    peak, misfit = static_at_peak(changed_study.plan_input)
    return replace(changed_study, peak=peak, misfit=misfit)


def _with_fault(fleet: Fleet, fault: RegionOutage | FailedStarts) -> Fleet:
    return replace(fleet, faults=(*fleet.faults, fault))


def _slow_and_failed_starts(fleet: Fleet, factor: float) -> Fleet:
    """Return the fleet with starts that take ``factor`` times as long; the first one fails.

    The failure tests that a policy also copes with a start that never serves.
    """

    def slow(pool: Pool) -> Pool:
        start = pool.start_up
        if start is not None:
            start = replace(start, local_s=start.local_s * factor, remote_s=start.remote_s * factor)
        return replace(pool, startup_s=pool.startup_s * factor, start_up=start)

    fleet = replace(fleet, pools=tuple(slow(pool) for pool in fleet.pools))
    return _with_fault(fleet, FailedStarts(nth=(1,)))
