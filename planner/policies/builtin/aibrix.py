"""Model AIBrix's pod autoscaler."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from planner.policies.base import Above, Factor, Group, Interval, Traits
from planner.policies.builtin.hpa import MetricPolicy, Target
from planner.policies.builtin.periodic import DAYS, MONDAY_S, WEEK_S, WEEKDAYS
from planner.policies.context import BuiltPolicy, PolicyContext
from planner.schema_types import Count, Delay, Section
from simulation.policies.aibrix import Bounds, Strategy
from simulation.policies.aibrix import PodAutoscaler as Rule
from simulation.policies.parts.pool_metrics import Metric
from simulation.policies.periodic import DAY_S

MOST_SCHEDULES = 1000
STRATEGIES: dict[str, Strategy] = {"aibrix-apa": "apa", "aibrix-kpa": "kpa"}
Clock = Annotated[str, Field(pattern=r"^([01]\d|2[0-3]):[0-5]\d$")]


class Schedule(Section):
    """Bounds of the replicas between two times of a day (UTC)."""

    days: list[DAYS] = []  # default: every day
    start: Clock  # "08:00", in quotes
    end: Clock
    minimum: Count
    maximum: Count

    def bounds(self) -> list[Bounds]:
        """Return the bounds for each day, with times in seconds since Monday 00:00 UTC."""

        def seconds(time: str) -> float:
            """Return the seconds since midnight of a time such as 08:30."""
            hour, minute = time.split(":")
            return int(hour) * 3600.0 + int(minute) * 60

        begin_s, end_s = seconds(self.start), seconds(self.end)
        days = [WEEKDAYS.index(day) for day in self.days] or range(7)
        return [
            Bounds(day * DAY_S + begin_s, day * DAY_S + end_s, self.minimum, self.maximum)
            for day in days
        ]


class Aibrix(MetricPolicy):
    """AIBrix's PodAutoscaler on a metric of the pods, with schedules of bounds."""

    kinds: ClassVar = {
        "aibrix-apa": Traits(
            "AIBrix, APA",
            "Scales by the mean metric (default: KV memory) of a pod ÷ target, with tolerances.",
            Group.OPPONENT,
            complexity=13,
        ),
        "aibrix-kpa": Traits(
            "AIBrix, KPA",
            "AIBrix's autoscaler with a stable and a panic window.",
            Group.OPPONENT,
            complexity=14,
        ),
    }

    default_targets: ClassVar = {"memory": 0.7, "gpu": 0.7, "queue": 5.0}
    name: Literal["aibrix-apa", "aibrix-kpa"]
    metric: Metric = Rule.metric  # memory, gpu, queue, concurrency or tokens
    # Per replica. Default: 0.7 of memory or time, 5 waiting requests, or the pressure test.
    target: Target | None = None
    up_tolerance: Factor = Rule.up_tolerance  # deviation without scale-out
    down_tolerance: Factor = Rule.down_tolerance  # deviation without scale-in
    max_up_rate: Above = Rule.max_up_rate  # largest growth per decision
    max_down_rate: Above = Rule.max_down_rate  # largest division per decision
    panic_threshold: Above = Rule.panic_threshold  # KPA: short over long mean that means panic
    up_cooldown_s: Delay = Rule.up_cooldown_s  # window of recommendations for scale-out
    down_cooldown_s: Delay = Rule.down_cooldown_s  # window of recommendations for scale-in
    holds: bool = Rule.holds  # true: a count changes only if its whole window asks for it
    pending_guard: bool = Rule.pending_guard  # true: replicas that start damp every step
    stable_window_s: Delay = Rule.stable_window_s  # long mean, seconds
    panic_window_s: Delay = Rule.panic_window_s  # short mean, seconds
    min_replicas: Count = Rule.min_replicas  # smallest count
    # Rows of days, start, end (UTC), minimum, maximum.
    schedules: Annotated[list[Schedule], Field(max_length=MOST_SCHEDULES)] = []
    interval_s: Interval = Rule.interval_s  # seconds between decisions

    def build(self, context: PolicyContext) -> BuiltPolicy:
        return context.with_current_fleet(Rule(**self.fields_for(Rule) | {
            "strategy": STRATEGIES[self.name],
            "target": self.scaled_target(context),
            "bounds": [bounds for row in self.schedules for bounds in row.bounds()],
            "offset_s": (context.start_s - MONDAY_S) % WEEK_S,
            "name": self.key,
        }))  # fmt: skip
