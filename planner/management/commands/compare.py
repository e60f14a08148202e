"""``bin/manage compare``: test every policy, recommend one, and replay all on one window."""

from __future__ import annotations

from typing import Any

from planner.management.base import RunCommand
from planner.management.commands.plan import PROFILE_ERRORS, RESTS_ON
from planner.models import Run
from planner.outputs.policy_tables import policy_words, recommendation_words
from planner.outputs.table_text import table_lines


class Command(RunCommand):
    help = "Recommend a policy of a scenario by test days, and replay every policy."
    kind = Run.Kind.COMPARE

    def words(self, answer: dict[str, Any]) -> str:
        take = answer["recommended"] or {}
        sentences = [take.get("sentence"), answer["headline"], answer["replayed"]["sentence"]]
        rows = [*filter(None, sentences), *(f"! {warning}" for warning in answer["warnings"]), ""]
        rows += policy_words(answer, answer["ranking"])
        rows += recommendation_words(answer)
        rows += table_lines(answer["profile_error"], PROFILE_ERRORS)
        return "\n".join(rows + table_lines(answer["assumptions"], RESTS_ON))
