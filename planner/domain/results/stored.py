"""Read the parts of a stored result that comparisons, exports and proposals share.

Kinds of run differ, and so do releases. What a result does not have is None, or empty.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from planner.domain.planning.figures import Decision, PlanTotals
from planner.domain.planning.purchases import ShiftFigures
from planner.domain.planning.spare_replicas import PlanSpare
from planner.domain.results.answer import ReplicaSchedule
from planner.domain.results.assurance import TestDayFigures
from planner.domain.results.basis import ReplayedTraffic, SizedReplica, WindowFacts
from planner.domain.serialise import MERGED
from planner.domain.study import Setting
from planner.domain.traffic.forecast_percentile import PlannedQuantile
from planner.policies.registry import plan_policy, traits_of


@dataclass(frozen=True, slots=True)
class StoredPolicy:
    """The figures of one policy; ``columns`` has all of them, by the name of their column.

    Costs are in dollars over the window. ``asked`` is False for a baseline that the run added.
    """

    label: str = ""
    asked: bool = True
    cost_usd: float | None = None
    before_cost_usd: float | None = None
    after_cost_usd: float | None = None
    flat_usd: float | None = None
    gpu_hours: float | None = None
    wasted_gpu_hours: float | None = None
    energy_kwh: float | None = None
    carbon_kg: float | None = None
    slo_attainment: dict[str, float | None] = field(default_factory=dict)
    slo_met: dict[str, bool] = field(default_factory=dict)
    settings: tuple[Setting, ...] = ()
    columns: Mapping[str, Any] = field(default_factory=dict, metadata={MERGED: True})


@dataclass(frozen=True, slots=True)
class StoredRecommendation:
    """The recommended policy of a comparison or of a plan."""

    policy: str = ""
    label: str = ""
    sentence: str = ""
    why: str = ""
    assurance: str = ""
    parameters: dict[str, float] = field(default_factory=dict)
    follows_plan: bool = False
    cost_usd: float | None = None
    gpu_hours: float | None = None
    attainment: dict[str, float | None] | None = None
    meets_slo: bool | None = None
    timetable: ReplicaSchedule | None = None


@dataclass(frozen=True, slots=True)
class StoredLevel:
    """A level of assurance; ``spare``: its recommended policy keeps a spare replica (N+1)."""

    spare: bool = False


@dataclass(frozen=True, slots=True)
class StoredPlan:
    """The totals of a plan, the deferrable work that it moves, and its spare replicas."""

    totals: PlanTotals | None = None
    shift: ShiftFigures | None = None
    spare: PlanSpare | None = None


@dataclass(frozen=True, slots=True)
class StoredForecast:
    """A forecast of one series, and its errors in the window as shares of demand."""

    model: str
    region: str
    tier: str
    method: str = ""
    wape: float | None = None
    peak_wape: float | None = None


@dataclass(frozen=True, slots=True)
class StoredForecasts:
    """The forecasts of a result, and the percentiles that its plan uses."""

    series: tuple[StoredForecast, ...] = ()
    quantile: tuple[PlannedQuantile, ...] = ()


@dataclass(frozen=True, slots=True)
class StoredRatio:
    """The best P:D ratio of ``instances`` replicas of a model; 0 and 0 if no ratio was found."""

    model: str
    instances: int
    prefill: int = 0
    decode: int = 0


@dataclass(frozen=True, slots=True)
class StoredResult:
    """The parts of a stored result that several kinds of run have."""

    scenario: str = ""
    headline: str = ""
    window: WindowFacts | None = None
    replayed: ReplayedTraffic | None = None
    recommended: StoredRecommendation | None = None
    policies: dict[str, StoredPolicy] = field(default_factory=dict)
    baseline: str = ""
    baselines: tuple[str, ...] = ()
    ranking: tuple[str, ...] = ()
    assurance: dict[str, StoredLevel] = field(default_factory=dict)  # by level
    alternatives: dict[str, str] = field(default_factory=dict)  # policy by level, or "static"
    plan: StoredPlan | None = None
    forecast: StoredForecasts | None = None
    series: tuple[StoredForecast, ...] = ()  # of a forecast run
    capacity: tuple[SizedReplica, ...] = ()
    deferrable: tuple[str, ...] = ()  # tiers that may wait
    pd_ratios: tuple[StoredRatio, ...] = ()
    test_days: tuple[TestDayFigures, ...] = ()
    pools: tuple[SizedReplica, ...] = ()  # of a size run; those of other kinds lack max_rps

    @property
    def recommended_policy(self) -> str:
        """Return the name of the recommended policy, or ""."""
        return self.recommended.policy if self.recommended else ""

    @property
    def clock(self) -> str:
        """Return "utc", or "relative" for a trace without dates."""
        return self.window.clock if self.window and self.window.clock else "utc"

    @property
    def policies_in_order(self) -> dict[str, StoredPolicy]:
        """Return the policies in the order of the scenario."""
        # ``policies`` was stored as JSON in PostgreSQL, which does not keep the order of keys.
        order = dict.fromkeys([*self.baselines, *self.policies])
        return {name: self.policies[name] for name in order if name in self.policies}

    @property
    def labels(self) -> dict[str, str]:
        """Return the label of each policy, in the order of the scenario."""
        return {name: row.label or name for name, row in self.policies_in_order.items()}

    @property
    def deployable_labels(self) -> dict[str, str]:
        """Return the label of each policy that uses no future data."""
        return {
            name: label
            for name, label in self.labels.items()
            if not traits_of(name).uses_future_data
        }

    @property
    def default_policy(self) -> str:
        """Return the policy to show if none is chosen: the recommended one.

        In a result without one, it is the policy that follows the plan, else the best deployable
        one, else the best one. "" without policies.
        """
        policies = self.policies_in_order
        if self.recommended_policy in policies:
            return self.recommended_policy
        ranking = [name for name in self.ranking if name in policies]
        best_first = list(dict.fromkeys([*ranking, *policies]))
        following_plan = plan_policy([name for name in best_first if policies[name].asked])
        if following_plan:
            return following_plan
        deployable = [name for name in best_first if not traits_of(name).reads_future]
        return next(iter([*deployable, *best_first]), "")


@dataclass(frozen=True, slots=True)
class StoredDecisions:
    """The decisions of a plan, read apart from ``StoredPlan`` because there can be thousands."""

    decisions: tuple[Decision, ...] = ()


@dataclass(frozen=True, slots=True)
class PlannedReplicas:
    """The part of a stored result with the decisions of its plan."""

    plan: StoredDecisions | None = None
