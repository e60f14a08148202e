"""The analyses of a scenario, with their runs."""

from planner.models import Run, Scenario, User
from planner.selectors.analyses import AnalysisState, analyses_of
from planner.services.scenarios import scenario_edit
from tests.planner.web.study import completed_run


def of(scenario: Scenario, kind: str = Run.Kind.COMPARE) -> AnalysisState:
    return next(state for state in analyses_of(scenario) if state.analysis.kind == kind)


def test_the_newest_result_is_shown_until_the_settings_change(
    planner: User, scenario: Scenario
) -> None:
    assert {state.run for state in analyses_of(scenario)} == {None}
    first, second = completed_run(planner, scenario), completed_run(planner, scenario)
    Run.objects.update(document=scenario.document)
    state = of(scenario)
    assert first.pk < second.pk == state.result.pk and not state.outdated
    assert state.seconds == 12.0
    changed = scenario_edit(scenario=scenario, user=planner, changes={"horizon.period_s": 900})
    assert of(changed).outdated
    assert of(changed, Run.Kind.FORECAST).result is None


def test_a_run_that_failed_leaves_the_result_before(planner: User, scenario: Scenario) -> None:
    done = completed_run(planner, scenario)
    failed = completed_run(planner, scenario)
    Run.objects.filter(pk=failed.pk).update(state=Run.State.FAILED)
    state = of(scenario)
    assert (state.run.pk, state.result.pk) == (failed.pk, done.pk)
