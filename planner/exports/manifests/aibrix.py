"""AIBrix: a PodAutoscaler whose schedules give the limits of each stretch.

Of its schedules the one that is active sets the limits; they may not overlap, nor cross midnight,
nor end at it: the last minute of a day has the limits of the object itself
(pkg/utils/paschedules/schedules.go @ 044ac33).
"""

from __future__ import annotations

from typing import Any

from planner.errors import NotReady
from planner.exports.manifests.common import (
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
from planner.exports.patterns import DAY, UNKNOWN, Slot, slots
from planner.exports.plans import Plan, Pool
from simulation.arrays import IntArray

API, KIND = "autoscaling.aibrix.ai/v1alpha1", "PodAutoscaler"
WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
LAST = DAY - 1  # minute of a day that no schedule reaches
# AIBrix refuses an object without one; it decides only between limits that differ.
METRIC, TARGET, PORT = "kv_cache_usage_perc", "0.7", "8000"


def documents(export: Export) -> list[Document]:
    plan = export.plan
    if plan.rule:
        raise NotReady(
            f"{plan.label} scales by a rule of its own and has no timetable for AIBrix; export it "
            "to keda or hpa, or name a policy that plans."
        )
    notes = (
        "Schedules know days of the week and no dates; the object's own limits hold outside them, "
        "and in the minute before midnight, which none of them may reach.",
        f"Between limits that differ it goes by {METRIC} {TARGET} at port {PORT} (assumed: vLLM's, "
        "and AIBrix's own example); in a schedule both are the plan's number.",
    )
    return with_head(
        [_scaled(export, pool) for pool in plan.pools], heading(export, *notes, *unguarded(plan))
    )


def _scaled(export: Export, pool: Pool) -> Document:
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
    """The most that is wanted in any day's last minute, which only the object itself covers."""
    return int(max(counts[LAST::DAY].max(), floor))


def schedules(plan: Plan, counts: IntArray, base: int) -> list[dict[str, Any]]:
    """Every stretch whose number is not ``base``, cut at midnight."""
    cut = counts.copy()
    cut[LAST::DAY] = UNKNOWN
    return [
        _schedule(plan, slot, f"from-{i + 1}")
        for i, slot in enumerate(s for s in slots(cut, UNKNOWN) if s.replicas != base)
    ]


def _schedule(plan: Plan, slot: Slot, name: str) -> dict[str, Any]:
    return {
        "name": name,
        "timezone": plan.zone,
        **({"daysOfWeek": [WEEKDAYS[day] for day in slot.days]} if slot.days else {}),
        "startTime": _clock(slot.start),
        "endTime": _clock(slot.start + slot.minutes),
        "minReplicas": slot.replicas,
        "maxReplicas": max(slot.replicas, 1),  # it takes none below one
    }


def _clock(minute: int) -> str:
    return f"{minute // 60:02d}:{minute % 60:02d}"
