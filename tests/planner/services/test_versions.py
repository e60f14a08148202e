"""Versions of scenarios: every save is kept, any is restored or branched."""

from __future__ import annotations

import pytest

from planner.errors import PlannerError
from planner.services.scenarios import (
    scenario_branch,
    scenario_edit,
    scenario_restore,
    scenario_update,
)


def told(scenario) -> list[tuple[int, str, str]]:
    rows = scenario.versions.select_related("author")
    return [(row.number, row.author.username, row.message) for row in rows]


def test_every_save_is_a_version(scenario, planner, colleague):
    saved = scenario_edit(
        scenario=scenario, user=colleague, changes={"horizon.period_s": 900}, message="Quarters"
    )
    assert told(saved) == [(2, "carl", "Quarters"), (1, "pia", "")]
    scenario_update(scenario=saved, user=planner, document=saved.document)  # nothing changed
    assert saved.versions.count() == 2
    first = saved.versions.get(number=1)
    back = scenario_restore(version=first, user=planner)
    assert back.document == first.document and back.version == 3
    newest = back.versions.get(number=3)
    assert (newest.message, newest.origin) == ("Version 1 restored", first)
    with pytest.raises(PlannerError, match="at most 500"):
        scenario_edit(scenario=back, user=planner, changes={"seed": 9}, message="x" * 501)


def test_a_branch_is_a_scenario_of_its_own(scenario, colleague):
    version = scenario.versions.get()
    branch = scenario_branch(version=version, user=colleague)
    again = scenario_branch(version=version, user=colleague)
    assert (branch.name, again.name) == ("Chat branch", "Chat branch (2)")
    assert branch.owner == colleague and "# Kept for the meeting" in branch.document
    assert branch.versions.get().origin == version
    assert branch.versions.get().message == "Branched from Chat, version 1"
    scenario_edit(scenario=branch, user=colleague, changes={"seed": 9})
    scenario.refresh_from_db()
    assert "seed: 7" in scenario.document and scenario.version == 1
