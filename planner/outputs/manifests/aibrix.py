"""Write a plan for AIBrix: a PodAutoscaler with one schedule per stretch of equal replicas.

The active schedule sets the limits. Schedules may not overlap, cross midnight or end at midnight.
The limits of the object itself therefore apply in the last minute of a day
(pkg/utils/paschedules/schedules.go @ 044ac33).
"""

from planner.errors import NotReady, PlannerError
from planner.outputs.manifests.common import (
    Document,
    Export,
    Fields,
    deployment,
    heading,
    metadata,
    place_words,
    scale_target,
    schedule_only_note,
    with_head,
)
from planner.outputs.plans import Plan, Pool, Rule
from planner.outputs.weekly_pattern import DAY, UNKNOWN, Slot, slots
from planner.policies.builtin.aibrix import Aibrix
from simulation.arrays import IntArray
from simulation.policies.parts.pool_metrics import WORDS

API, KIND = "autoscaling.aibrix.ai/v1alpha1", "PodAutoscaler"
WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
LAST = DAY - 1  # last minute of a day, which no schedule covers
ANNOTATIONS = "autoscaling.aibrix.ai"  # prefix of their names
METRICS = {"memory": "kv_cache_usage_perc", "queue": "num_requests_waiting"}
# AIBrix refuses an object without a metric, but uses it only if the limits differ.
METRIC, TARGET, PORT = "kv_cache_usage_perc", "0.7", "8000"


def documents(export: Export) -> list[Document]:
    """Return one PodAutoscaler per pool.

    Raises NotReady if the policy is a reactive rule, which has no schedule.
    """
    plan = export.plan
    if plan.rule and isinstance(plan.rule.policy, Aibrix):
        autoscalers = [_by_metric(export, pool, plan.rule, plan.rule.policy) for pool in plan.pools]
        note = f"It scales on its metric at port {PORT} (assumed)."
        return with_head(autoscalers, heading(export, note))
    if plan.rule:
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
    return with_head(
        [_pod_autoscaler(export, pool) for pool in plan.pools],
        heading(export, *notes, *schedule_only_note(plan)),
    )


def _pod_autoscaler(export: Export, pool: Pool) -> Document:
    """Return the PodAutoscaler of a pool: a constant minimum, and schedules above it."""
    counts = export.plan.replicas_by_minute(pool)
    base = base_replicas(counts, export.plan.min_replicas(pool))
    scheduled = schedules(export.plan, counts, base)
    body = {
        "apiVersion": API,
        "kind": KIND,
        "metadata": metadata(export, pool),
        "spec": {
            "scalingStrategy": "APA",
            "minReplicas": base,
            "maxReplicas": max(pool.most, 1),
            "scaleTargetRef": scale_target(deployment(pool)),
            "metricsSources": [_metric_source(METRIC, TARGET)],
            **({"schedules": scheduled} if scheduled else {}),
        },
    }
    return Document(body, "aibrix", (place_words(pool),))


def _by_metric(export: Export, pool: Pool, rule: Rule, policy: Aibrix) -> Document:
    """Return the PodAutoscaler that scales a pool like the policy ``aibrix-apa`` or ``-kpa``.

    Raises PlannerError if AIBrix has no metric of that name, or if the target is not known.
    """
    if policy.metric not in METRICS:
        raise PlannerError(f"AIBrix has no metric for {policy.metric}. Use {' or '.join(METRICS)}.")
    target = rule.computed_for(pool, f"target of {WORDS[policy.metric]}")
    if target is None:
        raise PlannerError(f"The result has no target of {place_words(pool)}. Run it again.")
    annotations = {
        "max-scale-up-rate": f"{policy.max_up_rate:g}",
        "max-scale-down-rate": f"{policy.max_down_rate:g}",
        "scale-up-tolerance": f"{policy.up_tolerance:g}",
        "scale-down-tolerance": f"{policy.down_tolerance:g}",
        "panic-threshold": f"{policy.panic_threshold:g}",
        "scale-up-cooldown-window": f"{policy.up_cooldown_s:g}s",
        "scale-down-cooldown-window": f"{policy.down_cooldown_s:g}s",
    }
    schedules = _schedules(policy)
    body = {
        "apiVersion": API,
        "kind": KIND,
        "metadata": metadata(export, pool, annotations={
            f"{ANNOTATIONS}/{name}": value for name, value in annotations.items()
        }),
        "spec": {
            "scalingStrategy": policy.name.removeprefix("aibrix-").upper(),
            "minReplicas": max(pool.least, policy.min_replicas),
            "maxReplicas": max(pool.most, 1),
            "observeWindowSeconds": round(policy.stable_window_s),
            "panicWindowSeconds": round(policy.panic_window_s),
            "scaleTargetRef": scale_target(deployment(pool)),
            "metricsSources": [_metric_source(METRICS[policy.metric], f"{target:.6g}")],
            **({"schedules": schedules} if schedules else {}),
        },
    }  # fmt: skip
    return Document(body, "aibrix", (place_words(pool),))


def _schedules(policy: Aibrix) -> list[Fields]:
    """Return the policy's limits on replicas by time of the week, for the ``spec``."""
    return [
        {
            "name": f"from-{i + 1}",
            "timezone": "UTC",
            **({"daysOfWeek": [day.title() for day in row.days]} if row.days else {}),
            "startTime": row.start,
            "endTime": row.end,
            "minReplicas": row.minimum,
            "maxReplicas": max(row.maximum, 1),
        }
        for i, row in enumerate(policy.schedules)
    ]


def _metric_source(metric: str, target: str) -> dict[str, str]:
    """Return a metric of the pods, with its target per pod."""
    return {
        "metricSourceType": "pod", "protocolType": "http", "port": PORT, "path": "metrics",
        "targetMetric": metric, "targetValue": target,
    }  # fmt: skip


def base_replicas(counts: IntArray, least: int) -> int:
    """Return the minimum of replicas that the object needs apart from its schedules.

    Schedules cover no day's last minute, so it is the largest of ``counts`` (by minute of a day or
    week) in these minutes. It is never below ``least``.
    """
    return int(max(counts[LAST::DAY].max(), least))


def schedules(plan: Plan, counts: IntArray, base: int) -> list[Fields]:
    """Return schedules within days, for times of ``plan`` with ``counts`` other than ``base``."""
    cut = counts.copy()
    # Unknown minutes get no schedule, so every stretch ends before midnight.
    cut[LAST::DAY] = UNKNOWN
    scheduled = [slot for slot in slots(cut, UNKNOWN) if slot.replicas != base]
    return [_schedule(plan, slot, f"from-{i}") for i, slot in enumerate(scheduled, start=1)]


def _schedule(plan: Plan, slot: Slot, name: str) -> Fields:
    """Return the schedule of one time slot, with equal lower and upper limits."""
    return {
        "name": name,
        "timezone": plan.zone,
        **({"daysOfWeek": [WEEKDAYS[day] for day in slot.days]} if slot.days else {}),
        "startTime": _clock(slot.start),
        "endTime": _clock(slot.start + slot.minutes),
        "minReplicas": slot.replicas,
        "maxReplicas": max(slot.replicas, 1),  # AIBrix refuses 0
    }


def _clock(minute: int) -> str:
    """Return a minute of the day as text, HH:MM."""
    return f"{minute // 60:02d}:{minute % 60:02d}"
