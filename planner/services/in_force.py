"""Which plan clusters follow: put in force, withdrawn."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from planner.errors import NotReady
from planner.exports.options import ExportOptions
from planner.exports.plans import Plan, plan_of
from planner.models import PlanInForce, Run, User
from planner.services.access import check_may_approve


def put_in_force(
    *, run: Run, options: ExportOptions, user: User | None, now: datetime
) -> PlanInForce:
    """From now on; ends what was before. Raises NotReady for a policy that has no timetable."""
    check_may_approve(user)
    plan = plan_of(run, options, now)
    if plan.rule is not None:
        raise NotReady(
            f"{plan.label} scales by a rule of its own and has no timetable to follow; export it "
            "to hpa or keda, or name a policy that plans."
        )
    with transaction.atomic():
        PlanInForce.objects.filter(until=None).update(until=now)
        return PlanInForce.objects.create(
            run=run,
            number=run.pk,
            scenario=plan.scenario[:120],
            policy=plan.policy,
            repeat=plan.repeat,
            zone=plan.zone,
            begins=plan.begins,
            ends=plan.ends,
            pools=_frozen(plan),
            by=user,
            since=now,
        )


def withdraw(*, user: User | None, now: datetime) -> bool:
    """No plan is in force any more; whether one was."""
    check_may_approve(user)
    return bool(PlanInForce.objects.filter(until=None).update(until=now))


def _frozen(plan: Plan) -> list[dict[str, object]]:
    return [
        {
            "name": pool.name,
            "region": pool.region,
            "model": pool.model,
            "gpu": pool.gpu,
            "role": pool.role,
            "steps": [
                [step.begins.isoformat(), step.ends.isoformat(), step.replicas]
                for step in pool.steps
            ],
        }
        for pool in plan.pools
    ]
