"""``bin/manage schedule``: manage schedules, which plan again at given times."""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from django.db.models import Model
from django.utils import timezone

from planner.domain.options import options_in
from planner.domain.serialise import as_json
from planner.errors import EXPECTED, PlannerError
from planner.management.base import Document, HeadroomCommand
from planner.management.options import (
    add_options,
    moment,
    name_and_setting,
    options_from_command_line,
)
from planner.management.runs import load_scenario
from planner.models import Firing, Scenario, Schedule
from planner.outputs.table_text import table_lines
from planner.selectors.schedules import firings_list, outcomes_list, schedule_get, schedules_list
from planner.services import schedules as services
from planner.services.notifications import digest_text
from planner.services.plan_outcomes import outcomes_tick
from planner.services.scenarios import scenario_create
from planner.services.schedule_firings import firing_settle, schedule_fire, schedules_tick
from planner.services.worker import run_execute

ACTIONS = ("list", "add", "change", "pause", "resume", "fire", "tick", "history", "outcomes",
           "digest")  # fmt: skip
MAX_LISTED = 20  # firings, or outcomes
SCHEDULES = {"schedule": "name", "scenario": "scenario", "cron": "cron", "time zone": "timezone",
             "next": "next", "paused": "paused"}  # fmt: skip
FIRINGS = {"due": "due_at", "state": "state", "run": "run", "said": "words"}
OUTCOMES = {"from": "begins", "until": "ends", "run": "run", "state": "state", "said": "words"}
# Attributes of rows, by key in JSON.
SCHEDULE = {
    "name": "name", "scenario": "scenario.name", "kind": "kind", "options": "options",
    "policy": "policy", "cron": "cron", "timezone": "zone", "most_replicas": "most_replicas",
    "most_cost": "most_cost", "paused": "paused", "next_due": "next_due",
}  # fmt: skip
FIRING = {
    "schedule": "schedule.name", "due_at": "due_at", "as_of": "as_of", "state": "state",
    "words": "words", "run": "run_id", "proposal": "proposal_id", "difference": "difference",
}  # fmt: skip
OUTCOME = {
    "begins": "begins", "ends": "ends", "run": "plan.number", "state": "state", "words": "words",
    "figures": "figures",
}  # fmt: skip
NULL_IF_EMPTY = ("policy", "difference", "figures")


class Command(HeadroomCommand):
    help = "Plan again at fixed times: add, run, pause and list schedules and outcomes."
    examples = (
        "schedule list",
        'schedule add nightly --scenario week --cron "0 3 * * *"',
        "schedule fire nightly",
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("action", choices=ACTIONS, help="what to do")
        parser.add_argument("name", nargs="?", default="", help="name of the schedule")
        parser.add_argument("--scenario", help="scenario file (YAML), or a stored one's name or id")
        add_options(parser, options_in(services.ScheduleSettings))
        parser.add_argument(
            "--set", action="append", dest="options", metavar="OPTION=VALUE", help="run option"
        )
        parser.add_argument("--as-of", type=moment, help="fire: time whose data is used")
        parser.add_argument("--now", type=moment, help="assume this time (separate database only)")

    def answer(self, options: Namespace) -> Document:
        """Carry out the action, and return the schedules, firings, outcomes or digest."""
        if not options.name and options.action not in ("list", "tick", "outcomes", "digest"):
            raise PlannerError(f"schedule {options.action}: name a schedule.")
        now: datetime = options.now or timezone.now()
        match options.action:
            case "list":
                return _schedules(schedules_list())
            case "digest":
                return {"digest": digest_text(now=now)}
            case "tick":
                tick = schedules_tick(now=now, enqueue=False)
                executed = self._execute_runs(tick.fired, now)
                return _firings([*tick.settled, *executed])
            case "outcomes":
                schedule = schedule_get(options.name) if options.name else None
                outcomes_tick(now=now, limit=MAX_LISTED, progress=self.progress)
                outcomes = outcomes_list(schedule)[:MAX_LISTED]
                return {"outcomes": [_document(outcome, OUTCOME) for outcome in outcomes]}
            case "add":
                return _schedules([self._add(options, now)])
            case _:
                return self._answer_on(schedule_get(options.name), options, now)

    def _answer_on(self, schedule: Schedule, options: Namespace, now: datetime) -> Document:
        """Carry out an action on a stored schedule, and return the schedule or its firings."""
        match options.action:
            case "fire":
                firing = schedule_fire(
                    schedule=schedule, user=None, now=now, as_of=options.as_of, enqueue=False
                )
                return _firings(self._execute_runs([firing], now))
            case "history":
                firings = firings_list(schedule)[:MAX_LISTED]
                return _schedules([schedule]) | _firings(firings)
            case "pause":
                services.schedule_pause(schedule=schedule, user=None)
            case "resume":
                services.schedule_resume(schedule=schedule, user=None, now=now)
            case "change":
                settings = self._settings(options)
                services.schedule_change(schedule=schedule, user=None, now=now, **settings)
        return _schedules([schedule])

    def _add(self, options: Namespace, now: datetime) -> Schedule:
        """Create a schedule and return it; raise PlannerError without --scenario or --cron."""
        settings = self._settings(options)
        missing = [name for name in ("scenario", "cron") if name not in settings]
        if missing:
            raise PlannerError(f"schedule add: give --{' and --'.join(missing)} too.")
        return services.schedule_create(owner=None, name=options.name, now=now, **settings)

    def _settings(self, options: Namespace) -> Document:
        """Return the settings of a schedule on the command line, by argument of the services."""
        settings = options_from_command_line(services.ScheduleSettings, options)
        if "timezone" in settings:
            settings["zone"] = settings.pop("timezone")
        if options.options is not None:
            form = "an option and its value, as verify=true"
            run_options = {}
            for text in options.options:
                name, value = name_and_setting("--set", text, form)
                run_options[name] = value
            settings["options"] = run_options
        if options.scenario is not None:
            settings["scenario"] = self._scenario(options.scenario)
        return settings

    def _scenario(self, source: str) -> Scenario:
        """Return the stored scenario that ``source`` names, by name or id or as a file.

        The scenario of a file is stored if its name is new. Raises PlannerError if a different
        scenario of that name is stored.
        """
        document, name = load_scenario(source, self.progress)
        scenario = Scenario.objects.filter(name=name).first()
        if scenario is not None and Path(source).exists() and scenario.document != document:
            raise PlannerError(
                f"{source}: a different scenario {name!r} already exists. Change name in the file, "
                "or give --scenario with the name of the stored one."
            )
        return scenario or scenario_create(owner=None, document=document)

    def _execute_runs(self, firings: Sequence[Firing], now: datetime) -> Sequence[Firing]:
        """Execute the runs of firings one after the other in this process, and settle each."""
        for firing in firings:
            if firing.run_id is None or firing.state != Firing.State.RUNNING:
                continue
            with suppress(*EXPECTED):  # the run and its firing record the error
                run_execute(run_id=firing.run_id, observer=self.progress, raise_errors=True)
            firing.refresh_from_db()
            firing_settle(firing=firing, now=now)
        return firings

    def words(self, answer: Document) -> str:
        """Return the schedules, firings and outcomes as tables."""
        lines = []
        if "digest" in answer:
            lines.append(answer["digest"])
        if "schedules" in answer:
            rows = []
            for schedule in answer["schedules"]:
                next_due = datetime.fromisoformat(schedule["next_due"])
                local = next_due.astimezone(ZoneInfo(schedule["timezone"]))
                rows.append(schedule | {"next": local.isoformat(timespec="minutes")})
            lines += table_lines(rows, SCHEDULES) or ["There is no schedule."]
        if "firings" in answer:
            lines += table_lines(answer["firings"], FIRINGS) or ["Nothing was due."]
        if "outcomes" in answer:
            lines += table_lines(answer["outcomes"], OUTCOMES) or ["No plan has ended yet."]
        return "\n".join(lines)


def _schedules(schedules: Iterable[Schedule]) -> Document:
    """Return schedules as the answer of the command."""
    return {"schedules": [_document(schedule, SCHEDULE) for schedule in schedules]}


def _firings(firings: Iterable[Firing]) -> Document:
    """Return firings as the answer of the command."""
    return {"firings": [_document(firing, FIRING) for firing in firings]}


def _document(row: Model, paths: Mapping[str, str]) -> Document:
    """Return values of a row as JSON data.

    ``paths`` has a dotted path of attributes by key. A value is null if a row on its path is.
    """
    values: Document = {}
    for key, path in paths.items():
        value: Any = row
        for attribute in path.split("."):
            value = getattr(value, attribute, None)
        if key in NULL_IF_EMPTY and not value:
            value = None
        values[key] = value
    document: Document = as_json(values)
    return document
