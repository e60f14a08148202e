"""``bin/manage in-force``: list, set or withdraw the active plans, one per scenario."""

from argparse import ArgumentParser, Namespace

from django.utils import timezone

from planner.domain.options import options_in, options_of
from planner.errors import NotReady
from planner.management.base import Document, HeadroomCommand
from planner.management.options import add_options, options_from_command_line
from planner.models import ActivePlan
from planner.outputs.metrics import desired_by_pool
from planner.outputs.options import ExportOptions
from planner.outputs.table_text import table_lines
from planner.selectors import active_plans as known
from planner.selectors.runs import run_get
from planner.services.active_plans import plan_activate, plan_end, plan_restore

LEFT_OUT = ("table", "namespace", "prometheus", "at", "form")  # export options that do not apply
COLUMNS = {"pool": "pool", "region": "region", "replicas now": "replicas"}
HISTORY = {"plan": "plan", "run": "run", "scenario": "scenario", "since": "since", "until": "until",
        "by": "by", "why": "why"}  # fmt: skip


class Command(HeadroomCommand):
    help = "List active plans, activate one, or end one (see /metrics)."
    examples = ("in-force", 'in-force 12 --message "Summer plan"', "in-force --history")

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("run", nargs="?", type=int, help="run with the plan to activate")
        parser.add_argument("--none", action="store_true", help="end the active plan")
        parser.add_argument(
            "--scenario", default="", help="scenario of the plan, if several are active"
        )
        parser.add_argument("--history", action="store_true", help="list active and former plans")
        parser.add_argument(
            "--again",
            type=int,
            metavar="PLAN",
            help="restore an earlier plan, by its number in --history",
        )
        parser.add_argument("--message", default="", help="reason")
        add_options(parser, options_in(ExportOptions), leave_out=LEFT_OUT)

    def answer(self, options: Namespace) -> Document:
        """Change the active plan if asked to; return the history, or the plans that are active."""
        actions = [options.none, options.run is not None, options.again is not None]
        if sum(actions) > 1:
            raise NotReady("in-force: give one of a run's number, --again and --none.")
        if options.history:
            return {
                "plans": [_history_row(plan) for plan in known.activated_plans(options.scenario)]
            }
        if any(actions):
            self._change(options)
        plans = list(known.active_plans())
        if options.scenario:
            current = known.active_plan(options.scenario)
            plans = [current] if current else []
        requested = [_requested_now(plan) for plan in plans]
        first = requested[0] if requested else {"run": None, "desired": []}
        return first | {"plans": requested}

    def _change(self, options: Namespace) -> None:
        """Activate, restore or end a plan, as the options say."""
        now, message = timezone.now(), options.message
        if options.again is not None:
            earlier = known.activated_plan_get(options.again)
            plan_restore(plan=earlier, user=None, now=now, message=message)
        elif options.run is not None:
            run = run_get(options.run)
            given = options_from_command_line(ExportOptions, options)
            export = options_of(ExportOptions, given)
            plan_activate(run=run, options=export, user=None, now=now, message=message)
        else:
            current = known.active_plan(options.scenario)
            # For None, ``plan_end`` ends the only active plan, and refuses if there are several.
            if current or not options.scenario:
                plan_end(user=None, now=now, plan=current)

    def words(self, answer: Document) -> str:
        """Return the active plans with their replicas, or the history, as tables."""
        if answer["plans"] and "plan" in answer["plans"][0]:
            return "\n".join(table_lines(answer["plans"], HISTORY))
        lines = []
        for plan in answer["plans"]:
            lines.append(
                f"Run {plan['run']} of {plan['scenario']} is active: {plan['policy']}, "
                f"{plan['repeat']}."
            )
            lines += table_lines(plan["desired"], COLUMNS)
        return "\n".join(lines) or "No plan is active."


def _history_row(plan: ActivePlan) -> Document:
    """Return a plan as a row of the history."""
    return {
        "plan": plan.pk,
        "run": plan.number,
        "scenario": plan.scenario,
        "policy": plan.policy,
        "repeat": plan.repeat,
        "since": f"{plan.since:%Y-%m-%d %H:%M}",
        "until": f"{plan.until:%Y-%m-%d %H:%M}" if plan.until else "now",
        "by": plan.who,
        "proposal": plan.proposal_id,
        "why": plan.why,
    }


def _requested_now(plan: ActivePlan) -> Document:
    """Return a plan with the replicas that it requests of each pool now."""
    pools = desired_by_pool(plan, timezone.now())
    return {
        "run": plan.number,
        "scenario": plan.scenario,
        "policy": plan.policy,
        "repeat": plan.repeat,
        "timezone": plan.zone,
        "desired": [
            {"pool": pool.pool, "region": pool.region, "replicas": pool.replicas} for pool in pools
        ],
    }
