"""Scenarios kept, changed and removed: nothing of the author's text is lost."""

from contextlib import suppress

import pytest

from planner.errors import NotFound, NotReady, ScenarioError, VersionConflict
from planner.models import Run, Scenario
from planner.selectors.scenarios import scenario_get
from planner.services.scenarios import (
    document_run,
    scenario_create,
    scenario_delete,
    scenario_edit,
    scenario_run,
    scenario_update,
)
from tests.at_once import at_once
from tests.planner.samples import DOCUMENT


@pytest.mark.django_db(transaction=True)
def test_of_saves_at_the_same_moment_one_wins(planner):
    scenario = scenario_create(owner=planner, document=DOCUMENT)
    copies = [Scenario.objects.get(pk=scenario.pk) for _ in range(4)]

    def save(i):
        with suppress(VersionConflict):
            text = f"{DOCUMENT}# {i}\n"
            return scenario_update(scenario=copies[i], user=planner, document=text, version=1)

    (saved,) = (kept for kept in at_once(4, save) if kept)
    scenario.refresh_from_db()
    assert (scenario.version, scenario.document) == (2, saved.document)


def test_a_scenario_removed_meanwhile_is_not_made_anew_by_a_save(scenario, planner):
    scenario_delete(scenario=Scenario.objects.get(pk=scenario.pk), user=planner)
    with pytest.raises(NotFound, match="removed"):
        scenario_update(scenario=scenario, user=planner, document=DOCUMENT + "# x\n")
    assert not Scenario.objects.exists()


def test_a_name_is_given_once_and_the_line_is_told(scenario, planner):
    with pytest.raises(ScenarioError, match=r"line 3: name: .*'Chat'"):
        scenario_create(owner=planner, document=DOCUMENT)
    other = scenario_create(owner=planner, document=DOCUMENT.replace("Chat", "Other"))
    with pytest.raises(ScenarioError, match="already"):
        scenario_update(scenario=other, user=planner, document=DOCUMENT)
    other.refresh_from_db()
    assert (other.name, other.version) == ("Other", 1)


def test_the_name_follows_the_document(scenario, planner):
    renamed = scenario_edit(scenario=scenario, user=planner, changes={"name": "Chat, east"})
    assert scenario_get("Chat, east") == renamed
    with pytest.raises(NotFound, match="Chat, east"):
        scenario_get("Chat")


def test_a_run_keeps_the_scenario_as_it_was(scenario, planner):
    run = scenario_run(scenario=scenario, owner=planner)
    scenario_edit(scenario=scenario, user=planner, changes={"seed": 8})
    run.refresh_from_db()
    assert (run.document, run.seed) == (DOCUMENT, 7)


def test_a_document_that_is_not_kept_runs_under_its_name(planner):
    run = document_run(document=DOCUMENT, owner=planner, kind=Run.Kind.PLAN)
    assert (run.name, run.document, run.scenario) == ("Chat", DOCUMENT, None)
    assert not Scenario.objects.exists()
    with pytest.raises(ScenarioError):
        document_run(document="version: 1", owner=planner, kind=Run.Kind.PLAN)


def test_paths_of_this_machine_are_not_read_for_a_run(planner):
    from planner.services.worker import run_execute

    document = DOCUMENT.replace("trace: conv", "file: /etc/hostname")
    over = run_execute(run_id=document_run(document=document, owner=planner, kind="plan").pk)
    assert over.state == Run.State.FAILED
    assert "command line" in over.problem


def test_a_scenario_goes_when_no_run_of_it_goes_on(scenario, planner):
    run = scenario_run(scenario=scenario, owner=planner)
    with pytest.raises(NotReady, match="run going"):
        scenario_delete(scenario=scenario, user=planner)
    Run.objects.filter(pk=run.pk).update(state=Run.State.FAILED)
    scenario_delete(scenario=scenario, user=planner)
    run.refresh_from_db()
    assert (run.scenario, run.name) == (None, "Chat")
