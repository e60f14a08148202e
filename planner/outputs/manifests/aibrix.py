"""Write a plan for AIBrix: a PodAutoscaler with one schedule per stretch of equal replicas.

The active schedule sets the limits. Schedules may not overlap, cross midnight or end at midnight.
The limits of the object itself therefore apply in the last minute of a day
(pkg/utils/paschedules/schedules.go @ 044ac33).
"""

from __future__ import annotations

from typing import Any

from planner.errors import NotReady
from planner.outputs.manifests.common import (
    Document,
    Export,
    deployment,
    heading,
    metadata,
    place_words,
    scale_target,
    unguarded,
    with_head,
)
from planner.outputs.plans import Plan, Pool
from planner.outputs.weekly_pattern import DAY, UNKNOWN, Slot, slots
from simulation.arrays import IntArray

API, KIND = "autoscaling.aibrix.ai/v1alpha1", "PodAutoscaler"
WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
LAST = DAY - 1  # last minute of a day, which no schedule covers
# AIBrix refuses an object without a metric, but uses it only if the limits differ.
METRIC, TARGET, PORT = "kv_cache_usage_perc", "0.7", "8000"


def documents(export: Export) -> list[Document]:
    """Return one PodAutoscaler per pool.

    Raises NotReady if the policy is a rule, which has no schedule.
    """
    plan = export.plan
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
        heading(export, *notes, *unguarded(plan)),
    )


def _pod_autoscaler(export: Export, pool: Pool) -> Document:
    """Return the PodAutoscaler of a pool."""
    counts = export.plan.counts(pool)
    base = floor_of(counts, export.plan.floor(pool))
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
            "metricsSources": [
                {
                    "metricSourceType": "pod",
                    "protocolType": "http",
                    "port": PORT,
                    "path": "metrics",
                    "targetMetric": METRIC,
                    "targetValue": TARGET,
                }
            ],
            **({"schedules": scheduled} if scheduled else {}),
        },
    }
    return Document(body, "aibrix", (place_words(pool),))


def floor_of(counts: IntArray, floor: int) -> int:
    """Return the limit of the object itself, in replicas.

    It is the largest number in the last minute of any day, because no schedule covers that minute.
    """
    return int(max(counts[LAST::DAY].max(), floor))


def schedules(plan: Plan, counts: IntArray, base: int) -> list[dict[str, Any]]:
    """Return a schedule for every stretch with other replicas than ``base``, cut at midnight."""
    cut = counts.copy()
    # Unknown minutes get no schedule, so every stretch ends before midnight.
    cut[LAST::DAY] = UNKNOWN
    return [
        _schedule(plan, slot, f"from-{i + 1}")
        for i, slot in enumerate(s for s in slots(cut, UNKNOWN) if s.replicas != base)
    ]


def _schedule(plan: Plan, slot: Slot, name: str) -> dict[str, Any]:
    """Return a stretch as a schedule with equal limits."""
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
    """Return a minute of the day as HH:MM."""
    return f"{minute // 60:02d}:{minute % 60:02d}"
