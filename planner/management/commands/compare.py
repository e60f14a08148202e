"""``bin/manage compare``: replay every policy on the same requests."""

from __future__ import annotations

from typing import Any

from planner.management.base import RunCommand
from planner.management.commands.plan import PROFILE_ERRORS, RESTS_ON
from planner.models import Run
from planner.outputs.policy_tables import policy_words
from planner.outputs.table_text import listed


class Command(RunCommand):
    help = "Forecast, plan and replay every policy of a scenario."
    kind = Run.Kind.COMPARE

    def words(self, answer: dict[str, Any]) -> str:
        take = answer["recommended"] or {}
        sentences = [take.get("sentence"), answer["headline"], answer["replayed"]["sentence"]]
        rows = [*filter(None, sentences), *(f"! {warning}" for warning in answer["warnings"]), ""]
        rows += policy_words(answer, answer["ranking"])
        rows += [f"Take {row['label']} for {row['reason']}" for row in answer["recommendations"]]
        rows += listed(answer["profile_error"], PROFILE_ERRORS)
        return "\n".join(rows + listed(answer["assumptions"], RESTS_ON))
