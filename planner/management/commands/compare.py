"""bin/manage compare: every policy on the same requests, side by side."""

from __future__ import annotations

from typing import Any

from planner.exports.policies import policy_words
from planner.management.base import RunCommand
from planner.management.commands.plan import error_words
from planner.models import Run


class Command(RunCommand):
    help = "Forecast, plan and replay every policy of a scenario."
    kind = Run.Kind.COMPARE

    def words(self, answer: dict[str, Any]) -> str:
        rows = [answer["headline"], *(f"! {warning}" for warning in answer["warnings"]), ""]
        rows += policy_words(answer, answer["ranking"])
        rows += [f"Take {one['label']} for {one['reason']}" for one in answer["recommendations"]]
        return "\n".join(rows + [error_words(row) for row in answer["profile_error"]])
