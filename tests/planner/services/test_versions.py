"""Versions of scenarios: every save is kept, any is restored or branched."""

import pytest

from planner.errors import PlannerError
from planner.inputs.scenario.document import outline, section_of, with_section
from planner.models import Scenario
from planner.selectors.scenarios import compare_versions, version_get, versions_changing
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


def test_policies_have_versions_by_themselves(scenario, planner, colleague):
    """Listed by the saves that changed them, compared, restored and taken elsewhere alone."""

    def now() -> Scenario:
        return Scenario.objects.get()

    changes = {"policies": ["flat-peak"]}
    scenario_edit(scenario=now(), user=colleague, changes=changes, message="One baseline")
    scenario_edit(scenario=now(), user=colleague, changes={"horizon.period_s": 900})
    agreed = now().document.replace("policies:", "policies: # agreed on Monday")
    scenario_update(scenario=now(), user=colleague, document=agreed)
    numbers = [version.number for version in versions_changing(scenario, "policies")]
    assert numbers == [4, 2, 1] and versions_changing(scenario, "").count() == 4
    first, second, fourth = (version_get(scenario, n) for n in (1, 2, 4))
    changed = [row.key for row in compare_versions(first, second, "policies").settings]
    assert changed and all(key.startswith("policies") for key in changed)
    between_them = compare_versions(second, fourth, "policies")
    assert between_them.settings == () and "+policies: # agreed on Monday" in "\n".join(
        between_them.lines
    )
    assert not any("period_s" in line for line in between_them.lines)
    back = scenario_restore(version=first, user=planner, part="policies")
    assert "period_s: 900" in back.document and "agreed" not in back.document
    assert section_of(back.document, "policies") == section_of(first.document, "policies")
    newest = version_get(back, 5)
    assert (newest.message, newest.origin) == ("Policies of version 1 restored", first)
    other = scenario_branch(version=first, user=planner, name="Other")
    taken = scenario_restore(version=fourth, user=planner, part="policies", into=other)
    assert taken == other and "# agreed on Monday" in taken.document
    assert version_get(taken, 2).message == "Policies of Chat, version 4 taken"
    with pytest.raises(PlannerError, match="name the part"):
        scenario_restore(version=fourth, user=planner, into=other)


@pytest.mark.parametrize(
    "document",
    [
        "policies:\n- a\n- {name: b}  # why\n\n# of the horizon\nhorizon: {}\n",
        "seed: 1\npolicies: [a,\n  b,\n]\nhorizon: {}",
        "'policies':\n  - a\n",
        '{"seed": 1, "policies": ["a"]}',
        "seed: 1\n",
    ],
)
def test_a_section_is_put_in_anothers_place(document):
    kept = "name: x\npolicies:\n  - old # gone\n# of tiers\ntiers: []\n"
    with_kept = with_section(kept, "policies", document)
    assert outline(with_kept) == {"name": "x", "tiers": []} | {
        key: value for key, value in outline(document).items() if key == "policies"
    }
    if document.startswith(("seed: 1\np", "p", "'")):  # written by lines: comments go along
        assert (
            "gone" not in with_kept
            and "# of tiers" in with_kept
            and "of the horizon" not in with_kept
        )
    if "why" in document:
        assert "# why\n# of tiers" in with_kept


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
