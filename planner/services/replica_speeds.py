"""Compare the speed of replicas with that in the active plan, at each reading.

A drift is notified once while it lasts.
"""

import logging
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from django.urls import reverse

from planner.domain.deserialise import from_json
from planner.domain.retrospective.figures import JudgedSpeed, SpeedDrift, SpeedKey
from planner.domain.retrospective.speed_drift import speeds_now
from planner.domain.serialise import as_json
from planner.errors import EXPECTED
from planner.inputs.scenario import document as text
from planner.models import ActivePlan, Source
from planner.models.notification import Event
from planner.models.workspace import within
from planner.selectors.run_hardware import stored_hardware
from planner.services.notifications import notify
from planner.services.observed_traffic import observed_speeds, planned_pools

logger = logging.getLogger(__name__)

JUDGED_TIME = timedelta(days=1)  # time over which the speed is judged
# A drift ends when iteration times are within this share of the plan's (assumed).
RECOVERED_WITHIN = 0.025


def speeds_judge(*, source_id: int) -> list[JudgedSpeed]:
    """Compare the newest speeds from a source with the profiles of active plans.

    Only plans whose scenario names the source count. Returns the drifts that are stored with the
    source. A drift that lasts is notified once, also across plans that follow each other.
    """
    source = Source.everywhere.select_related("workspace").get(pk=source_id)
    with within(source.workspace):
        stored = [from_json(JudgedSpeed, row) for row in source.speed]
        before = {speed.key: speed for speed in stored}
        judged: dict[SpeedKey, JudgedSpeed] = {}
        plans = ActivePlan.objects.filter(until=None).exclude(run=None).select_related("run")
        for plan in plans:
            try:
                drifts = _drifts_of_plan(plan, source)
            # its scenario cannot be built any more, which is no fault of the source
            except EXPECTED as problem:
                logger.warning("speed of %s by %s: %s", plan, source.name, problem)
                continue
            for drift, until in drifts:
                speed = JudgedSpeed(drift, plan.scenario, plan.number, until)
                was_notified = speed.key in before and before[speed.key].told
                recovered = abs(drift.times - 1) <= RECOVERED_WITHIN or drift.low <= 1 <= drift.high
                still_notified = drift.flagged or (was_notified and not recovered)
                judged[speed.key] = replace(speed, told=still_notified)
                if drift.flagged and not was_notified:
                    notify(
                        source.workspace,
                        Event.DRIFT,
                        f"Live source {source.name}, plan of {plan.scenario}: {drift.sentence}.",
                        reverse("web:source", args=[source.name]),
                    )
        active = {plan.scenario for plan in plans}
        speeds = [speed for speed in (before | judged).values() if speed.scenario in active]
        Source.objects.filter(pk=source.pk).update(speed=as_json(speeds))
    return speeds


def _drifts_of_plan(plan: ActivePlan, source: Source) -> list[tuple[SpeedDrift, datetime]]:
    """Return the speed drifts of a plan and their times, from up to a day before the last data.

    Only data from after the plan took effect is used.
    """
    run, trace = plan.run, source.trace
    if run is None or trace is None or trace.end_at is None:
        return []
    until = trace.end_at.astimezone(UTC)
    begins = max(plan.since, until - JUDGED_TIME)
    if plan.repeat == "once":
        begins, until = max(begins, plan.begins), min(until, plan.ends)
    served = observed_speeds(run, begins, until, source) if begins < until else []
    if not served:
        return []
    drifts = speeds_now(
        text.parse(run.document, plan.scenario),
        stored_hardware(run.resolved),
        planned_pools(plan, begins, until),
        served,
        begins.timestamp(),
        until.timestamp(),
    )
    return [(drift, until) for drift in drifts]
