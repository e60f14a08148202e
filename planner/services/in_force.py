"""Which plan clusters follow: put in force, withdrawn."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from planner.errors import NotAllowed, NotReady
from planner.exports.options import ExportOptions
from planner.exports.plans import Plan, plan_of
from planner.models import PlanInForce, Proposal, Run, User
from planner.selectors.review import review_rules
from planner.services.access import check_may_approve
from planner.services.audit import record


def put_in_force(
    *,
    run: Run,
    options: ExportOptions,
    user: User | None,
    now: datetime,
    proposal: Proposal | None = None,
    rule: str = "",
) -> PlanInForce:
    """From now on; ends what was before. Raises NotReady for a policy that has no timetable.
    ``proposal``: one that was approved, by whom its own service has checked."""
    if proposal is None:
        check_may_approve(user)
        if review_rules().required:
            raise NotAllowed(
                "Here a plan takes effect by a proposal alone; propose it and have it approved."
            )
    plan = timetable_of(run, options, now)
    with transaction.atomic():
        PlanInForce.objects.filter(until=None).update(until=now)
        placed = PlanInForce.objects.create(
            run=run,
            proposal=proposal,
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
        record(
            "plan.in-force", run, by=user, rule=rule,
            proposal=proposal.pk if proposal else None, policy=plan.policy, repeat=plan.repeat,
        )  # fmt: skip
    return placed


def timetable_of(run: Run, options: ExportOptions, now: datetime) -> Plan:
    """The plan that would be in force; raises NotReady where it has no timetable."""
    plan = plan_of(run, options, now)
    if plan.rule is not None:
        raise NotReady(
            f"{plan.label} scales by a rule of its own and has no timetable to follow; export it "
            "to hpa or keda, or name a policy that plans."
        )
    return plan


@transaction.atomic
def withdraw(*, user: User | None, now: datetime) -> bool:
    """No plan is in force any more; whether one was."""
    check_may_approve(user)
    ended = PlanInForce.objects.filter(until=None)
    held = ended.first()
    if held is None:
        return False
    ended.update(until=now)
    record("plan.ended", str(held.number), by=user)
    return True


def _frozen(plan: Plan) -> list[dict[str, object]]:
    return [
        {
            "name": pool.name,
            "region": pool.region,
            "model": pool.model,
            "gpu": pool.gpu,
            "role": pool.role,
            "gpus": pool.gpus,
            "market": pool.market,
            "arrangement": pool.arrangement,
            "steps": [
                [step.begins.isoformat(), step.ends.isoformat(), step.replicas]
                for step in pool.steps
            ],
        }
        for pool in plan.pools
    ]
