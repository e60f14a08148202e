"""bin/manage compare: every policy on the same requests, side by side."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from planner.errors import PlannerError
from planner.exports.policies import policy_words
from planner.management.base import RunCommand
from planner.management.commands.plan import error_words
from planner.models import Run
from planner.policies.choice import ALL, known_policy
from planner.policies.own import policy_names


class Command(RunCommand):
    help = "Forecast, plan and replay every policy of a scenario."
    kind = Run.Kind.COMPARE

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--policies", help="comma-separated, or all; left out: the scenario's")

    def run_options(self, options: dict[str, Any]) -> dict[str, Any]:
        if not options["policies"]:
            return {}
        names = [name.strip() for name in options["policies"].split(",") if name.strip()]
        for name in names:
            if not known_policy(name) and names != [ALL]:
                raise PlannerError(
                    f"--policies: there is no policy {name!r}; choose from "
                    f"{', '.join(policy_names())}, or all."
                )
        return {"policies": names}

    def words(self, answer: dict[str, Any]) -> str:
        rows = [answer["headline"], *(f"! {warning}" for warning in answer["warnings"]), ""]
        rows += policy_words(answer, answer["ranking"])
        rows += [f"Take {one['label']} for {one['reason']}" for one in answer["recommendations"]]
        return "\n".join(rows + [error_words(row) for row in answer["profile_error"]])
