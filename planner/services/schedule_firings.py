"""Fire schedules: start a run at each due time, compare its plan with the active one, approve it.

A firing is a row for one due time of a schedule. A plan within the schedule's limits is approved by
rule. A periodic task calls ``schedules_tick``.

    tick -> running -> approved | review | failed
         -> missed (no tick soon enough, or the run before was not over)

The row of a due time can be created only once, and every change of state is a conditional update.
So two ticks at the same time do nothing twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.db import IntegrityError, transaction

from planner.domain.formats import signed_percent
from planner.domain.serialise import as_json
from planner.errors import EXPECTED, NotAllowed, NotFound, NotReady
from planner.inputs.scenario import document as text
from planner.models import ActivePlan, Firing, Proposal, Run, Schedule, User
from planner.models.notification import Event
from planner.models.workspace import current_workspace
from planner.outputs.options import ExportOptions
from planner.outputs.plan_difference import Difference, plan_difference
from planner.outputs.plans import Plan, tiers_missed
from planner.outputs.pools import Pool
from planner.outputs.stored_pools import StoredPool, pools_of
from planner.outputs.weekly_pattern import in_utc
from planner.selectors.review import UNDECIDED
from planner.selectors.runs import run_table, run_tables, stored_result
from planner.services.access import check_may_plan
from planner.services.active_plans import activatable_plan, plans_replaced_by
from planner.services.notifications import notify
from planner.services.proposals import amend, approve, propose
from planner.services.runs import run_create
from planner.services.schedules import cron_of
from planner.services.sources import pin_live_sources

# A firing that is later than this uses the data up to now, not up to its due time.
LATE = timedelta(minutes=15)
MAX_MISSED = 100  # missed due times that get a row
Price = dict[tuple[str, str, str, str], float]  # USD per hour by region, model, GPU and role


@dataclass(frozen=True, slots=True)
class TickResult:
    """The firings that one tick of the scheduler started, and those that it settled."""

    fired: tuple[Firing, ...]
    settled: tuple[Firing, ...]


def schedules_tick(*, now: datetime, enqueue: bool = True) -> TickResult:
    """Settle firings whose runs have ended, and fire due schedules.

    Repeating it, even at the same time, is safe. If several due times of a schedule have passed,
    only the last is fired, and the others are stored as missed. Without ``enqueue``, new runs are
    only stored.
    """
    running = Firing.objects.filter(state=Firing.State.RUNNING).select_related("schedule", "run")
    settled = [firing for firing in list(running) if firing_settle(firing=firing, now=now)]
    fired = []
    for schedule in Schedule.objects.filter(paused=False, next_due__lte=now):
        due = _claim_due_moment(schedule, now)
        if due is not None:
            fired.append(_create_firing(schedule, due, now, user=None, enqueue=enqueue))
    return TickResult(tuple(firing for firing in fired if firing is not None), tuple(settled))


def schedule_fire(
    *,
    schedule: Schedule,
    user: User | None,
    now: datetime,
    as_of: datetime | None = None,
    enqueue: bool = True,
) -> Firing:
    """Fire a schedule now, even if it is paused, and return the firing.

    The run uses data up to ``as_of``; None: up to now. Without ``enqueue`` it is only stored.
    Raises NotReady if the schedule was already fired in the same second.
    """
    check_may_plan(user, refusal="not fire schedules")
    firing = _create_firing(schedule, now.replace(microsecond=0), now, user, enqueue, as_of)
    if firing is None:
        raise NotReady(f"{schedule.name} was fired this very second; look at its history.")
    return firing


def firing_settle(*, firing: Firing, now: datetime) -> bool:
    """Settle a firing once its run has ended; return whether this call settled it.

    Its plan is proposed. It becomes active at once if the schedule's limits allow it.
    """
    run = firing.run
    if run is not None and not run.is_finished:
        return False
    try:
        with transaction.atomic():
            return _propose_plan(firing, run, now)
    except EXPECTED as problem:
        return _end(firing, Firing.State.FAILED, str(problem), now)


def _claim_due_moment(schedule: Schedule, now: datetime) -> datetime | None:
    """Return the last due time of a schedule, and store earlier ones as missed.

    None if it is not due, or if another caller got the time.
    """
    cron = cron_of(schedule)
    due = cron.between(schedule.next_due - timedelta(seconds=1), now, MAX_MISSED + 1)
    # Only one of several ticks finds ``next_due`` unchanged and moves it.
    unchanged = Schedule.objects.filter(pk=schedule.pk, paused=False, next_due=schedule.next_due)
    if not unchanged.update(next_due=cron.after(now)) or not due:
        return None
    *missed, last = due
    Firing.objects.bulk_create(
        [
            Firing(
                schedule=schedule,
                due_at=moment,
                fired_at=now,
                finished_at=now,
                state=Firing.State.MISSED,
                words=f"No scheduler was running. It starts late, for {last:%Y-%m-%d %H:%M} UTC.",
            )
            for moment in missed
        ],
        ignore_conflicts=True,
    )
    if missed:
        notify(
            current_workspace(),
            Event.FAILED,
            f"Schedule {schedule.name} missed {len(missed)} runs, the last "
            f"{missed[-1]:%Y-%m-%d %H:%M} UTC; the last one runs now.",
            f"/schedules/{schedule.pk}/",
        )
    return last


def _create_firing(
    schedule: Schedule,
    due: datetime,
    now: datetime,
    user: User | None,
    enqueue: bool,
    as_of: datetime | None = None,
) -> Firing | None:
    """Create and return the firing of the time ``due``, and start its run.

    If the run before is still going, the firing is stored as missed. ``as_of`` is the end of the
    data; None: ``due``, or ``now`` if that is late. Returns None if the firing exists already.
    """
    is_late = now - due > LATE
    data_until = as_of or (now.replace(second=0, microsecond=0) if is_late else due)
    firing = Firing(schedule=schedule, due_at=due, as_of=data_until, fired_at=now, by=user)
    is_other_running = schedule.firings.filter(state=Firing.State.RUNNING).exists()
    firing.state = Firing.State.MISSED if is_other_running else Firing.State.RUNNING
    if is_other_running:
        firing.words, firing.finished_at = "The run of the one before was still going.", now
    elif is_late and as_of is None:
        firing.words = f"Run {(now - due).total_seconds() / 3600:,.1f} h late."
    try:
        with transaction.atomic():  # nobody may see a firing without its run
            firing.save()
            if is_other_running:
                _notify_subscribers(firing, "was missed")
            else:
                _start_run(firing, schedule, data_until, now, enqueue)
    except IntegrityError:
        return None
    return firing


def _start_run(
    firing: Firing, schedule: Schedule, data_until: datetime, now: datetime, enqueue: bool
) -> None:
    """Start the run of a firing, for the time after ``data_until``.

    If that fails, end the firing as failed.
    """
    scenario = schedule.scenario
    if scenario is None:
        words = "The scenario was removed. Give the schedule another, or remove it."
        _end(firing, Firing.State.FAILED, words, now)
        return
    changes = {"traffic.until": data_until.astimezone(UTC).isoformat(), "horizon.start": "end"}
    try:
        with transaction.atomic():  # a failure leaves no trace of a live source behind
            document = text.edit(scenario.document, changes, scenario.name)
            document = pin_live_sources(document, data_until)
            text.parse(document, scenario.name)
            firing.run = run_create(
                owner=schedule.owner,
                kind=schedule.kind,
                scenario=scenario,
                document=document,
                options=schedule.options,
                enqueue=enqueue,
            )
            firing.save(update_fields=["run"])
    except EXPECTED as problem:
        firing.run = None
        _end(firing, Firing.State.FAILED, str(problem), now)


def _propose_plan(firing: Firing, run: Run | None, now: datetime) -> bool:
    """Propose the plan of a completed run, and approve it if the schedule's limits allow.

    Returns False if the firing has ended meanwhile. Raises NotReady if the run has not completed.
    """
    if run is None:
        raise NotFound("Its run was removed before it finished.")
    if run.state != Run.State.COMPLETED:
        raise NotReady(run.problem or f"Its run {run.pk} was cancelled.")
    schedule = firing.schedule
    options = {"repeat": "once"}
    if schedule.policy:
        options["policy"] = schedule.policy
    plan = activatable_plan(run, ExportOptions(**options), now)
    active = next(iter(plans_replaced_by(plan, run)), None)
    difference = difference_from_active(plan, active)
    reason = reason_for_review(  # "": the schedule may approve the plan
        difference,
        tiers_missed(stored_result(run), plan.policy),
        max_replicas=schedule.most_replicas,
        max_cost=schedule.most_cost,
    )
    sentences = [
        reason or "Within the limits.",
        difference.sentence if difference else "",
        _policy_sentence(schedule, run, plan),
    ]
    words = " ".join(sentence for sentence in sentences if sentence)
    firing.difference = as_json(difference) if difference else {}
    if not _end(firing, Firing.State.REVIEW, words, now):
        return False
    rule = f"schedule {schedule.name}"
    firing.proposal = _open_or_amend_proposal(schedule, run, words, options, rule)
    firing.save(update_fields=["proposal"])
    if not reason:
        _approve_by_rule(firing, rule, now)
    return True


def _policy_sentence(schedule: Schedule, run: Run, plan: Plan) -> str:
    """Return in words which policy of a comparison is used and why; "" for other runs."""
    if run.kind != Run.Kind.COMPARE:
        return ""
    result = stored_result(run)
    first = f"Of {len(result.policies)} policies compared it is {plan.label}"
    if not schedule.policy:
        return f"{first}, which is recommended."
    if result.recommended_policy == plan.policy:
        return f"{first}, chosen by the schedule and recommended."
    recommended_label = result.recommended.label if result.recommended else ""
    return f"{first}, chosen by the schedule. Recommended: {recommended_label or 'none'}."


def _open_or_amend_proposal(
    schedule: Schedule, run: Run, words: str, options: dict[str, str], rule: str
) -> Proposal:
    """Return the schedule's open proposal, amended with this run, or a new proposal."""
    open_proposal = Proposal.objects.filter(firings__schedule=schedule, state__in=UNDECIDED).first()
    if open_proposal is not None:
        return amend(proposal=open_proposal, by=None, run=run, message=words, rule=rule)
    return propose(
        by=None, title=f"By schedule: {schedule.name}", run=run, message=words, options=options,
        rule=rule,
    )  # fmt: skip


def _approve_by_rule(firing: Firing, rule: str, now: datetime) -> None:
    """Approve a firing's proposal by ``rule``; if that is not allowed, add the reason to it."""
    assert firing.proposal is not None
    try:
        approve(proposal=firing.proposal, by=None, rule=rule, now=now)
        firing.state = Firing.State.APPROVED
    except (NotAllowed, NotReady) as problem:
        firing.words += f" {problem}"
    firing.save(update_fields=["state", "words"])


def _end(firing: Firing, state: str, words: str, now: datetime) -> bool:
    """End a running firing in ``state``; return False if it has ended before."""
    all_words = f"{firing.words} {words}".strip()
    ended = Firing.objects.filter(pk=firing.pk, state=Firing.State.RUNNING).update(
        state=state, words=all_words, finished_at=now, difference=firing.difference
    )
    firing.refresh_from_db()
    if ended and state == Firing.State.FAILED:
        _notify_subscribers(firing, "failed")
    return bool(ended)


def _notify_subscribers(firing: Firing, outcome: str) -> None:
    """Notify the subscribers to failures; ``outcome`` says in words how the firing went wrong."""
    schedule, due = firing.schedule, f"{firing.due_at:%Y-%m-%d %H:%M} UTC"
    text = f"Schedule {schedule.name}, {due}, {outcome}: {firing.words}"
    notify(current_workspace(), Event.FAILED, text, f"/schedules/{schedule.pk}/")


def reason_for_review(
    difference: Difference | None,
    missed_tiers: Sequence[str],
    *,
    max_replicas: float | None,
    max_cost: float | None,
) -> str:
    """Return why a person must review a plan; "" if no review is needed.

    ``difference`` is that from the active plan; None if there is none. ``missed_tiers`` missed
    their SLO target in the simulation. ``max_replicas`` and ``max_cost`` are the largest changed
    shares of replica-hours and of cost without a review; None: every plan needs one.
    """
    if max_replicas is None or max_cost is None:
        return "Everything is to be reviewed: no limits are set."
    if missed_tiers:
        return f"Its replay missed the target for {', '.join(missed_tiers)}."
    if difference is None:
        return "No plan is active to compare it with."
    if not difference.hours or difference.left_out > difference.hours:
        return "The active plan covers too few of these hours to compare them."
    if difference.replicas_changed > max_replicas:
        return (
            f"{difference.replicas_changed:.1%} of replica-hours differ, above the limit of "
            f"{max_replicas:.1%}."
        )
    if difference.usd_changed is None:
        return "The price of its replicas is unknown."
    if abs(difference.usd_changed) > max_cost:
        return (
            f"Its cost differs by {signed_percent(difference.usd_changed)}, beyond the limit "
            f"of {max_cost:.1%}."
        )
    return ""


def difference_from_active(plan: Plan, active: ActivePlan | None) -> Difference | None:
    """Return the difference of ``plan`` from the ``active`` plan; None if that is None.

    Steps and prices are by (name, region) of a pool.
    """
    if active is None:
        return None
    active_pools = pools_of(active)
    prices = _replica_prices(active.run) | _replica_prices(Run.objects.filter(pk=plan.run).first())
    usd_per_hour = {}
    pools: list[Pool | StoredPool] = [*active_pools, *plan.pools]
    for pool in pools:  # a pool of both plans gets its new price
        price_key = pool.region, pool.model, pool.gpu, pool.role
        if price_key in prices:
            usd_per_hour[pool.name, pool.region] = prices[price_key]
    new_steps = {(pool.name, pool.region): in_utc(pool.steps, plan.zone) for pool in plan.pools}
    active_steps = {
        (pool.name, pool.region): in_utc(pool.steps, active.zone) for pool in active_pools
    }
    return plan_difference(new_steps, active_steps, usd_per_hour)


def _replica_prices(run: Run | None) -> Price:
    """Return the mean USD per replica-hour by pool of the run's plan; empty without a plan."""
    if run is None or "plan" not in run_tables(run):
        return {}
    columns = ("region", "model", "gpu", "role")
    plan = run_table(run, "plan").select(*columns, "usd_per_hour", "target")
    prices = {}
    for row in plan.group_by(*columns).sum().to_dicts():
        replica_hours = row["target"]  # replicas of each hour, summed
        if replica_hours:
            pool = row["region"], row["model"], row["gpu"], row["role"]
            prices[pool] = row["usd_per_hour"] / replica_hours
    return prices
