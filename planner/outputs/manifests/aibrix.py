"""Write a plan for AIBrix: a PodAutoscaler with a schedule for each time of constant replicas.

The active schedule sets the limits. Schedules may not overlap, cross midnight or end at midnight.
The limits of the object itself therefore apply in the last minute of a day
(pkg/utils/paschedules/schedules.go @ 044ac33).
"""

from planner.errors import NotReady, PlannerError
from planner.inputs.fleet.autoscalers import AIBRIX, ANNOTATIONS
from planner.outputs.manifests import common
from planner.outputs.plans import Rule, pool_text
from planner.outputs.pools import Pool
from planner.outputs.weekly_pattern import MINUTES_PER_DAY, UNKNOWN, recurring_slots
from planner.policies.builtin.aibrix import Aibrix
from simulation.policies.parts.pool_metrics import WORDS

API, KIND = "autoscaling.aibrix.ai/v1alpha1", "PodAutoscaler"
WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
LAST_MINUTE = MINUTES_PER_DAY - 1  # last minute of a day, which no schedule covers
METRICS = {"memory": "kv_cache_usage_perc", "queue": "num_requests_waiting"}
# AIBrix refuses an object without a metric, but uses it only if the limits differ.
METRIC, TARGET, PORT = "kv_cache_usage_perc", "0.7", "8000"


def documents(export: common.Export) -> list[common.Document]:
    """Return one PodAutoscaler per pool; raise NotReady for a reactive rule, without a schedule."""
    plan = export.plan
    rule = plan.rule
    if rule and isinstance(rule.policy, Aibrix):
        autoscalers = [_by_metric(export, pool, rule, rule.policy) for pool in plan.pools]
        note = f"It scales on its metric at port {PORT} (assumed)."
        return common.with_file_comment(export, autoscalers, note)
    if rule:
        raise NotReady(
            f"{plan.label} has no schedule for AIBrix, because it scales by its rule. Export it to "
            "keda or hpa, or name a policy that plans."
        )
    notes = (
        "Schedules have days of the week and no dates. The limits of the object apply outside "
        "them, and in the minute before midnight.",
        f"Between different limits, AIBrix scales on {METRIC} {TARGET} at port {PORT} (assumed). "
        "In a schedule, both limits are the planned count.",
    )
    autoscalers = [_by_schedule(export, pool) for pool in plan.pools]
    return common.with_file_comment(export, autoscalers, *notes, *common.schedule_only_note(plan))


def _by_schedule(export: common.Export, pool: Pool) -> common.Document:
    """Return the PodAutoscaler of a pool: a minimum, and schedules for all other counts."""
    plan = export.plan
    counts = plan.replicas_by_minute(pool)
    last_minutes = slice(LAST_MINUTE, None, MINUTES_PER_DAY)  # of each day
    # The object's own minimum has to suffice in the last minute of each day.
    minimum = int(max(counts[last_minutes].max(), plan.lowest_replicas(pool)))
    # A minute without a known count gets no schedule, so all schedules end before midnight.
    schedulable = counts.copy()
    schedulable[last_minutes] = UNKNOWN
    slots = [slot for slot in recurring_slots(schedulable, UNKNOWN) if slot.replicas != minimum]
    schedules = [
        {
            "name": f"from-{number}",
            "timezone": plan.zone,
            "daysOfWeek": [WEEKDAYS[day] for day in slot.days] or None,
            "startTime": _clock(slot.start_minute),
            "endTime": _clock(slot.start_minute + slot.length_minutes),
            "minReplicas": slot.replicas,
            "maxReplicas": max(slot.replicas, 1),  # AIBrix refuses 0
        }
        for number, slot in enumerate(slots, start=1)
    ]
    spec = {
        "scalingStrategy": "APA",
        "minReplicas": minimum,
        "maxReplicas": max(pool.max_replicas, 1),
        "scaleTargetRef": common.scale_target(common.deployment(pool)),
        "metricsSources": [_metric_source(METRIC, TARGET)],
        "schedules": schedules or None,
    }
    return common.pool_document(export, pool, API, KIND, "aibrix", spec)


def _by_metric(export: common.Export, pool: Pool, rule: Rule, policy: Aibrix) -> common.Document:
    """Return the PodAutoscaler of an ``aibrix-`` policy; raise PlannerError without a target."""
    if policy.metric not in METRICS:
        raise PlannerError(f"AIBrix has no metric for {policy.metric}. Use {' or '.join(METRICS)}.")
    target = rule.simulated_value(pool, f"target of {WORDS[policy.metric]}")
    if target is None:
        raise PlannerError(f"The result has no target of {pool_text(pool)}. Run it again.")
    annotations = {}
    for name, field in ANNOTATIONS.items():
        unit = "s" if field.endswith("_s") else ""
        annotations[f"{AIBRIX}{name}"] = f"{getattr(policy, field):g}{unit}"
    source = _metric_source(METRICS[policy.metric], f"{target:.6g}")
    schedules = [
        {
            "name": f"from-{number}",
            "timezone": "UTC",
            "daysOfWeek": [day.title() for day in limits.days] or None,
            "startTime": limits.start,
            "endTime": limits.end,
            "minReplicas": limits.minimum,
            "maxReplicas": max(limits.maximum, 1),
        }
        for number, limits in enumerate(policy.schedules, start=1)
    ]
    spec = {
        "scalingStrategy": policy.name.removeprefix("aibrix-").upper(),
        "minReplicas": max(pool.min_replicas, policy.min_replicas),
        "maxReplicas": max(pool.max_replicas, 1),
        "observeWindowSeconds": round(policy.stable_window_s),
        "panicWindowSeconds": round(policy.panic_window_s),
        "scaleTargetRef": common.scale_target(common.deployment(pool)),
        "metricsSources": [source],
        "schedules": schedules or None,
    }
    return common.pool_document(export, pool, API, KIND, "aibrix", spec, annotations=annotations)


def _metric_source(metric: str, target: str) -> dict[str, str]:
    """Return a metric of the pods, with its target per pod."""
    return {
        "metricSourceType": "pod", "protocolType": "http", "port": PORT, "path": "metrics",
        "targetMetric": metric, "targetValue": target,
    }  # fmt: skip


def _clock(minute_of_day: int) -> str:
    """Return a minute of the day as text, HH:MM."""
    hour, minute = divmod(minute_of_day, 60)
    return f"{hour:02d}:{minute:02d}"
