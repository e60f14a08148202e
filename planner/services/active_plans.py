"""Activate, restore and end the plans that clusters follow.

Each scenario has at most one active plan, and at most one plan asks for each deployment.
"""

from dataclasses import fields
from datetime import datetime

from django.db import transaction

from planner.errors import NotAllowed, NotReady, PlannerError
from planner.models import ActivePlan, Event, Proposal, Run, User
from planner.outputs.options import ExportOptions
from planner.outputs.plans import Plan, plan_of
from planner.outputs.pools import Pool
from planner.outputs.stored_pools import StoredPool, pools_of
from planner.selectors.active_plans import active_plan, active_plan_of_run, active_plans
from planner.selectors.review import review_rules
from planner.services.access import check_may_approve
from planner.services.audit import record
from planner.services.notifications import notify

MAX_MESSAGE_CHARACTERS = 500


def plan_activate(
    *,
    run: Run,
    options: ExportOptions,
    user: User | None,
    now: datetime,
    proposal: Proposal | None = None,
    rule: str = "",
    message: str = "",
) -> ActivePlan:
    """Activate the plan of a run from ``now`` on, and end the plans that it replaces.

    ``proposal`` is an approved proposal of the plan. Its caller has checked the approval and
    notifies people. Without a proposal, ``message`` is the reason. ``rule`` names the actor in the
    audit log if ``user`` is None.

    Raises NotReady for a policy without a replica schedule. Also raises it if the active plan of
    another scenario covers some of the deployments.
    """
    if proposal is None:
        _check_needs_no_proposal(user)
    plan = activatable_plan(run, options, now)
    with transaction.atomic():
        _end_plans(plans_replaced_by(plan, run), now)
        active = unsaved_active_plan(plan, run)
        active.proposal, active.by, active.since = proposal, user, now
        active.message = checked_text("message", message, MAX_MESSAGE_CHARACTERS)
        # An approval locks the audit log before the plan's number. Everybody must lock in this
        # order, else two plans could wait for each other.
        record(
            "plan.in-force", run, by=user, rule=rule,
            proposal=proposal.pk if proposal else None, policy=plan.policy, repeat=plan.repeat,
        )  # fmt: skip
        active.save()
        if proposal is None:
            _notify_subscribers(active, "made active")
    return active


def unsaved_active_plan(plan: Plan, run: Run) -> ActivePlan:
    """Return the ActivePlan row that activation would store, without saving it."""
    return ActivePlan(
        run=run,
        number=run.pk,
        scenario=plan.scenario[:120],  # the column's length
        policy=plan.policy,
        label=plan.label[:161],
        repeat=plan.repeat,
        zone=plan.zone,
        begins=plan.begins,
        ends=plan.ends,
        pools=[_pool_document(pool) for pool in plan.pools],
    )


@transaction.atomic
def plan_restore(
    *, plan: ActivePlan, user: User | None, now: datetime, message: str = ""
) -> ActivePlan:
    """Activate an earlier plan again with the same content, and end the plan that it replaces.

    ``user`` None: the command line. Raises NotReady if it is already active, or if its dates are
    over.
    """
    _check_needs_no_proposal(user)
    if plan.until is None:
        raise NotReady(f"Plan {plan.pk} is active.")
    if plan.repeat == "once" and plan.ends <= now:
        raise NotReady(
            f"The dates of plan {plan.pk} ended at {plan.ends:%Y-%m-%d %H:%M} UTC. Make run "
            f"{plan.number} active every day or week, or propose it so."
        )
    current = active_plan_of_run(plan.run) if plan.run else active_plan(plan.scenario)
    pools = {pool.key for pool in pools_of(plan)}
    _end_plans(_plans_replaced_by_pools(current, pools), now)
    restored = ActivePlan.objects.get(pk=plan.pk)
    # A new row: the earlier rows are the history of active plans.
    restored.pk, restored._state.adding = None, True
    restored.since, restored.until, restored.by = now, None, user
    reason = checked_text("message", message, MAX_MESSAGE_CHARACTERS)
    restored.origin, restored.message = plan, reason or f"Plan {plan.pk} restored"
    record(
        "plan.in-force", restored.run or str(restored.number), by=user,
        proposal=restored.proposal_id, policy=restored.policy, repeat=restored.repeat,
        restored=plan.pk,
    )  # fmt: skip
    restored.save()
    _notify_subscribers(restored, "made active again")
    return restored


def activatable_plan(run: Run, options: ExportOptions, now: datetime) -> Plan:
    """Return the plan that activation would use; raise NotReady if it has no replica schedule."""
    plan = plan_of(run, options, now)
    if plan.rule is not None:
        raise NotReady(
            f"{plan.label} scales by its rule and has no schedule. Export it "
            "to hpa or keda, or name a policy that plans."
        )
    return plan


def plans_replaced_by(plan: Plan, run: Run) -> list[ActivePlan]:
    """Return the active plans that end when ``plan`` takes effect.

    The first is the active plan of the same scenario. Plans of other scenarios follow if this plan
    has all of their deployments.

    Raises NotReady if another scenario's plan shares only some deployments with this one. Left
    active, the two would contradict each other. Ended, the deployments that are not shared would
    have no plan.
    """
    return _plans_replaced_by_pools(
        active_plan_of_run(run), {(pool.name, pool.region) for pool in plan.pools}
    )


def _plans_replaced_by_pools(
    current: ActivePlan | None, pools: set[tuple[str, str]]
) -> list[ActivePlan]:
    """Return the active plans that end when a plan with these ``pools`` (name, region) starts.

    ``current``, the active plan of the same scenario, always ends; None if there is none. Raises
    NotReady as ``plans_replaced_by`` does.
    """
    replaced = [current] if current else []
    for other in active_plans():
        other_pools = {pool.key for pool in pools_of(other)}
        shared = sorted(pools & other_pools)
        if other == current or not shared:
            continue
        if other_pools - pools:
            name, region = shared[0]
            raise NotReady(
                f"Run {other.number} of {other.scenario} is active and also scales "
                f"{name} in {region}. End that plan first, or change the names of "
                "these deployments."
            )
        replaced.append(other)
    return replaced


@transaction.atomic
def plan_end(*, user: User | None, now: datetime, plan: ActivePlan | None = None) -> bool:
    """End ``plan``, by default the only active plan; return whether one was active.

    Raises NotReady if ``plan`` has ended, or if several are active and none is named.
    """
    check_may_approve(user)
    if plan is not None and plan.until is not None:
        raise NotReady(f"Plan {plan.pk} is not active.")
    plans = [plan] if plan else list(active_plans())
    if len(plans) > 1:
        names = ", ".join(sorted(ended_plan.scenario for ended_plan in plans))
        raise NotReady(f"{len(plans)} plans are active. Choose a scenario: {names}.")
    _end_plans(plans, now)
    for ended_plan in plans:
        record("plan.ended", str(ended_plan.number), by=user, scenario=ended_plan.scenario)
        _notify_subscribers(ended_plan, "no longer active, and no plan replaces it")
    return bool(plans)


def _check_needs_no_proposal(user: User | None) -> None:
    """Raise NotAllowed if the user may not approve, or if plans need a proposal here."""
    check_may_approve(user)
    if review_rules().required:
        raise NotAllowed(
            "Here plans take effect only through proposals. Propose it and have it approved."
        )


def _end_plans(plans: list[ActivePlan], now: datetime) -> None:
    ActivePlan.objects.filter(pk__in=[plan.pk for plan in plans]).update(until=now)


def _notify_subscribers(plan: ActivePlan, status: str) -> None:
    """Notify the workspace that the plan "is …", followed by ``status``."""
    sentence = f"Run {plan.number} of {plan.scenario} is {status}."
    notify(plan.workspace, Event.IN_FORCE, sentence, f"/plans-in-force/{plan.pk}/")


def checked_text(name: str, text: str, max_characters: int) -> str:
    """Return a text without outer spaces; raise PlannerError if it is too long.

    ``name`` is the argument that the error names.
    """
    text = text.strip().replace("\0", "")  # PostgreSQL stores no NUL characters
    if len(text) > max_characters:
        raise PlannerError(f"{name}: at most {max_characters:,} characters, not {len(text):,}.")
    return text


def _pool_document(pool: Pool) -> dict[str, object]:
    """Return a pool of a plan as JSON-ready data, from which StoredPool reads it."""
    steps = [[step.begins.isoformat(), step.ends.isoformat(), step.replicas] for step in pool.steps]
    return {field.name: getattr(pool, field.name) for field in fields(StoredPool)} | {
        "steps": steps
    }
