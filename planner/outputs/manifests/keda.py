"""Write a plan for KEDA: a schedule as cron triggers, or a rule as a Prometheus query.

KEDA uses the largest result of all triggers.
"""

from datetime import timedelta

from planner.errors import PlannerError
from planner.outputs.manifests import common, endpoint_picker
from planner.outputs.manifests.rules import loads_of, query_of, velocity_query
from planner.outputs.object_names import LONGEST, name_of
from planner.outputs.plans import Plan
from planner.outputs.pools import Pool
from planner.outputs.weekly_pattern import (
    DAYS_PER_WEEK,
    MINUTES_PER_DAY,
    Slot,
    dated_slots,
    recurring_slots,
)
from planner.policies.builtin.endpoint_picker import EndpointPicker
from planner.policies.builtin.token_velocity import TokenVelocity

API, KIND = "keda.sh/v1alpha1", "ScaledObject"
POLL_S, ROUND_S = 30, 15  # KEDA's default; interval of the HPA controller
GUARDED = (
    "The triggers by load add replicas above the schedule, up to maxReplicaCount. In the "
    "simulation, the limit was the region's GPUs or fleet.maximum. The largest trigger wins.",
    "Queries need vLLM's metrics, the label pod, and pods with names that begin with their "
    "deployment's name. vLLM also counts cached prompt tokens.",
    "Queries have no tolerance and ignore other regions, so replicas may come earlier than "
    "simulated. Late requests count over 15 minutes, by limits that all tiers of a pool share. The "
    "simulated guard also learns the load above which requests are late, and removes what late "
    "requests required over half an hour.",
)


def documents(export: common.Export) -> list[common.Document]:
    """Return one ScaledObject per pool."""
    documents = [scaled_object(export, pool, common.deployment(pool)) for pool in export.plan.pools]
    return common.with_file_comment(export, documents, *trigger_notes(export.plan))


def trigger_notes(plan: Plan) -> list[str]:
    """Return notes on what the triggers do and what they assume."""
    if plan.rule and isinstance(plan.rule.policy, EndpointPicker):
        return [*endpoint_picker.notes(plan.rule.policy)]
    if plan.rule:
        return [
            "Queries need the label pod, and pods with names that begin with their deployment's "
            "name."
        ]
    notes = [
        "Outside every cron window, minReplicaCount applies: the lowest count of the plan. A "
        "trigger named always changes nothing. It is there because KEDA requires a trigger."
    ]
    if plan.repeat == "once":
        notes.append("Remove this file after its last date, because cron has no year.")
    if plan.has_guard:
        notes += GUARDED
    else:
        notes.append(
            "Nothing here reacts to load. To scale on load too, add a trigger and raise "
            "maxReplicaCount. The largest trigger wins."
        )
    notes.append(
        "A tolerance of 0 needs HPAConfigurableTolerance (Kubernetes 1.35 or later). Without it, "
        "Kubernetes ignores changes below 10%."
    )
    return notes


def scaled_object(
    export: common.Export, pool: Pool, target: common.Target, *,
    extra: tuple[common.Fields, ...] = (), annotations: dict[str, str] | None = None,
    name: str = "",
) -> common.Document:  # fmt: skip
    """Return the ScaledObject of a pool, which scales ``target``.

    ``extra`` are additional triggers by load. With them, the default behaviour of Kubernetes
    applies to steps down. ``name`` is the name of the object; "": that of the pool.
    """
    plan = export.plan
    if plan.rule is not None and isinstance(plan.rule.policy, EndpointPicker):
        return endpoint_picker.scaled_object(export, pool, target, plan.rule)
    hpa_config: common.Fields = {}
    object_name = name or pool.name
    if len(object_name) > LONGEST:  # the name that KEDA derives for the HPA would be too long
        hpa_config["name"] = name_of([object_name])
    if not extra:
        hpa_config["behavior"] = behaviour(plan, pool)
    spec = {
        "scaleTargetRef": common.scale_target(target),
        "pollingInterval": POLL_S,
        "minReplicaCount": plan.lowest_replicas(pool),
        "maxReplicaCount": pool.max_with_guard,
        "advanced": {"horizontalPodAutoscalerConfig": hpa_config} if hpa_config else None,
        "triggers": [*triggers(export, pool), *extra],
    }
    return common.pool_document(
        export, pool, API, KIND, "keda", spec, name=name, annotations=annotations
    )


def behaviour(plan: Plan, pool: Pool) -> common.Fields:
    """Return the HPA behaviour: a schedule's steps at once, or a rule's tolerance and window."""
    if plan.rule:
        tolerance = f"{plan.rule.tolerance:.6g}"
        wait = round(min(plan.rule.stabilisation_s, 3600))
        return {
            "scaleUp": {"stabilizationWindowSeconds": 0, "tolerance": tolerance},
            "scaleDown": {"stabilizationWindowSeconds": wait, "tolerance": tolerance},
        }
    # A policy of all replicas in one round of the controller removes its rate limit.
    step = {"type": "Pods", "value": pool.max_with_guard, "periodSeconds": ROUND_S}
    at_once = {"stabilizationWindowSeconds": 0, "tolerance": "0", "policies": [step]}
    return {"scaleUp": at_once, "scaleDown": at_once}


def triggers(export: common.Export, pool: Pool) -> list[common.Fields]:
    """Return the triggers of a pool: the query of a rule, or the plan's schedule and load guard."""
    rule = export.plan.rule
    if rule is None:
        # No result is no load: no pod runs, or no requests are queued.
        guard_triggers = [
            common.prometheus_trigger(
                export, load.name, load.query, load.threshold, no_result_is_zero=True
            )
            for load in loads_of(pool, pods=f'pod=~"{pool.name}-.*"')
        ]
        return [*_schedule_triggers(export.plan, pool), *guard_triggers]
    if isinstance(rule.policy, TokenVelocity):
        query, threshold = velocity_query(pool, rule, rule.policy.target)
    else:
        query, threshold = query_of(rule, pool.name), rule.target
    return [common.prometheus_trigger(export, "rule", query, threshold, no_result_is_zero=False)]


def _schedule_triggers(plan: Plan, pool: Pool) -> list[common.Fields]:
    """Return a cron trigger for each time with more replicas than the lowest count."""
    minimum = plan.lowest_replicas(pool)
    if plan.repeat == "once":
        slots = dated_slots(pool.steps, minimum)
    else:
        slots = recurring_slots(plan.replicas_by_minute(pool), minimum)
    if not slots:  # KEDA requires a trigger even if the minimum is enough
        all_day = Slot((), 0, length_minutes=MINUTES_PER_DAY - 1, replicas=max(minimum, 1))
        return [_cron(plan.zone, all_day, "always")]
    return [_cron(plan.zone, slot, f"from-{i}") for i, slot in enumerate(slots, start=1)]


def _cron(zone: str, slot: Slot, name: str) -> common.Fields:
    """Return a cron trigger; raise PlannerError if start and end are equal (an empty window)."""
    start, end = cron_fields(slot)
    if start == end:
        raise PlannerError(f"KEDA ignores a window that starts and ends at {start}. Choose weekly.")
    return {
        "type": "cron",
        "name": name,
        "metadata": {
            "timezone": zone,
            "start": start,
            "end": end,
            "desiredReplicas": str(slot.replicas),
        },
    }


def cron_fields(slot: Slot) -> tuple[str, str]:
    """Return the five cron fields of the start and of the end of a time slot."""
    end_minute = slot.start_minute + slot.length_minutes
    return _cron_time(slot, slot.start_minute), _cron_time(slot, end_minute)


def _cron_time(slot: Slot, minutes: int) -> str:
    """Return the five cron fields of a time, ``minutes`` after midnight of the days of a slot."""
    days_later, minute_of_day = divmod(minutes, MINUTES_PER_DAY)
    hour, minute = divmod(minute_of_day, 60)
    if slot.date is not None:
        date = slot.date + timedelta(days=days_later)
        return f"{minute} {hour} {date.day} {date.month} *"
    return f"{minute} {hour} * * {_cron_weekdays(slot.days, days_later)}"


def _cron_weekdays(days: tuple[int, ...], days_later: int) -> str:
    """Return days of the week (Monday is 0), each moved by ``days_later``, as a cron field.

    Cron counts from Sunday, which is 0. No days are every day, "*".
    """
    if not days:
        return "*"
    cron_days = sorted((day + 1 + days_later) % DAYS_PER_WEEK for day in days)
    runs: list[list[int]] = []  # of consecutive days
    for day in cron_days:
        if runs and runs[-1][-1] == day - 1:
            runs[-1].append(day)
        else:
            runs.append([day])
    parts = []
    for run in runs:
        if len(run) > 2:
            parts.append(f"{run[0]}-{run[-1]}")
        else:
            parts += map(str, run)
    return ",".join(parts)
