"""Sweeps: a run for every pair of values, shown as a heat map."""

import pytest
from django.urls import reverse
from rest_framework.test import APIClient

from planner.domain.whatif.settings import Axis
from planner.errors import NotAllowed, NotReady, PlannerError, ScenarioError
from planner.inputs.scenario.address import values_by_address
from planner.inputs.scenario.document import edit, parse, values_of
from planner.models import Run, Scenario, Sweep, User
from planner.selectors.sweeps import sweep_grid
from planner.services.whatif import sweep_cancel, sweep_create, sweep_delete
from tests.planner.web.pages import signed_in, text_of
from tests.planner.web.study import DOCUMENT, result

TTFT, QUANTILE = "tiers[IW-F].ttft_ms", "forecast.quantile"
AXES = (Axis(TTFT, (500, 1000)), Axis(QUANTILE, (0.8, 0.9, None)))


@pytest.fixture
def sweep(planner: User, pools: Scenario) -> Sweep:
    return sweep_create(owner=planner, scenario=pools, document=DOCUMENT, axes=AXES, enqueue=False)


def over(run: Run, usd: float) -> None:
    run.state, run.result = Run.State.COMPLETED, result(run.pk) | {"policies": {}}
    run.result["plan"] |= {"totals": {"usd": usd, "gpu_hours": usd / 2.5}}
    run.save()


def test_every_cell_is_the_run_of_its_own_scenario(sweep: Sweep) -> None:
    runs = list(sweep.runs.order_by("cell"))
    assert len(runs) == 6 and {run.kind for run in runs} == {"plan"}
    for run, (ttft, level) in zip(runs, [(t, q) for t in AXES[0].values for q in AXES[1].values],
                                  strict=True):  # fmt: skip
        assert run.document == edit(DOCUMENT, {TTFT: ttft, QUANTILE: level})
        values = values_by_address(parse(run.document))
        assert (values[TTFT], values.get(QUANTILE)) == (ttft, level)
    assert "# the larger one" in runs[0].document  # comments are kept


def test_a_grid_shows_what_came_of_each_and_the_best(sweep: Sweep) -> None:
    runs = list(sweep.runs.order_by("cell"))
    for run, usd in zip(runs, (30.0, 20.0, 10.0, 25.0, 15.0), strict=False):
        over(run, usd)
    grid = sweep_grid(sweep)
    assert [[cell.value for cell in row] for row in grid.rows] == [[30, 20, 10], [25, 15, None]]
    assert [[cell.run for cell in row] for row in grid.rows] == [
        [run.pk for run in runs[:3]], [run.pk for run in runs[3:]]
    ]  # fmt: skip
    assert grid.rows[0][2].best and grid.rows[0][0].place == 1.0 and grid.rows[0][2].place == 0.0
    assert (grid.done, grid.failed, grid.going) == (5, 0, 1)
    runs[0].delete()
    assert sweep_grid(sweep).rows[0][0].state == "removed"


@pytest.mark.parametrize(
    ("axes", "says"),
    [
        ((Axis("tiers[IW-F].ttft_ms", (-1,)),), "with tiers[IW-F].ttft_ms = -1"),
        ((Axis("tiers[chat].ttft_ms", (1,)),), "there is no 'chat'. Choose from IW-F"),
        ((Axis("horizon.perod_s", (1,)),), "period_s"),
        ((Axis("a..b", (1,)),), "no such setting"),
        ((Axis("seed", ()),), "no values"),
        ((Axis("seed", (1, 1)),), "twice"),
        ((Axis("seed", tuple(range(17))), Axis(QUANTILE, tuple(range(16)))), "272 cells"),
        ((Axis("seed", (1,)), Axis("seed", (2,))), "appears twice"),
        ((), "one or two"),
    ],
)
def test_what_makes_no_scenario_starts_nothing(
    planner: User, axes: tuple[Axis, ...], says: str
) -> None:
    with pytest.raises(PlannerError) as problem:
        sweep_create(owner=planner, document=DOCUMENT, axes=axes, enqueue=False)
    assert says in str(problem.value)
    assert not Sweep.objects.exists() and not Run.objects.exists()


def test_values_are_written_as_a_scenario_has_them() -> None:
    assert values_of("0.5, 1, null, true, mean, [a, b], 2024-05-20T12:00:00Z") == [
        0.5, 1, None, True, "mean", ["a", "b"], "2024-05-20T12:00:00+00:00"
    ]  # fmt: skip
    with pytest.raises(ScenarioError, match="commas"):
        values_of("[1")


def test_an_entry_that_is_a_bare_name_takes_a_value_too() -> None:
    text = edit(DOCUMENT, {"policies[lt-i].load_factor": 1.2})
    assert values_by_address(parse(text))["policies[lt-i].load_factor"] == 1.2
    assert values_by_address(parse(edit(text, {"profiles[0].tp": 2})))["profiles[0].tp"] == 2


def test_cancel_and_remove(sweep: Sweep, planner: User, viewer: User, colleague: User) -> None:
    with pytest.raises(NotAllowed):
        sweep_cancel(sweep=sweep, user=viewer)
    with pytest.raises(NotReady, match="still going"):
        sweep_delete(sweep=sweep, user=planner)
    over(sweep.runs.order_by("cell")[0], 1.0)
    assert sweep_cancel(sweep=sweep, user=colleague) == 5
    with pytest.raises(NotAllowed):
        sweep_delete(sweep=sweep, user=colleague)
    sweep_delete(sweep=sweep, user=planner)
    assert not Sweep.objects.exists() and not Run.objects.exists()


def test_the_pages(planner: User, viewer: User, pools: Scenario, sweep: Sweep) -> None:
    client, reader = signed_in(planner), signed_in(viewer)
    over(sweep.runs.get(cell=1), 12.0)
    address = reverse("web:what-if", args=[sweep.pk])
    page = reader.get(address)
    assert (page.context["grid"].done, page.context["going"]) == (1, 5)
    (cells,) = [s for s in page.context["sections"] if s.section.title == "All combinations"]
    assert 12.0 in cells.section.tables[0].rows[1]
    done = reverse("web:run", args=[sweep.runs.get(cell=1).pk])
    assert done in page.content.decode()
    assert reader.get(address, {"figure": "beauty"}).status_code == 400
    ((listed, _),) = reader.get(reverse("web:what-ifs")).context["sweeps"]
    assert (listed.sweep, listed.done, listed.cost) == (sweep, 1, "$12")
    assert [list(each.values) for each in listed.varied] == [list(axis.values) for axis in AXES]
    assert "Two pools" not in text_of(reader.get(reverse("web:runs")))  # they are on its page
    # Former addresses lead to it.
    assert reader.get(reverse("web:sweep", args=[sweep.pk])).url == address
    assert reader.get(reverse("web:sweeps")).url == reverse("web:what-ifs")
    own = reverse("web:scenario-what-if", args=[pools.pk])
    assert reader.get(reverse("web:sweep-new"), {"scenario": pools.pk}).url == own
    changed = reader.get(reverse("web:sweep-new"), {"scenario": pools.pk, "growth": "1.5"})
    assert changed.url == f"{own}?growth=1.5"
    assert reader.get(own).status_code == 200  # it has no plan yet
    fields = {"scenario": pools, "state": Run.State.COMPLETED, "result": {}, "document": DOCUMENT}
    kinds = (Run.Kind.COMPARE, Run.Kind.PARETO)
    compared, front = (Run.objects.create(**fields, kind=kind, name="r") for kind in kinds)
    assert compared.pk < front.pk
    assert reader.get(own).url == reverse("web:run-what-if", args=[compared.pk])
    assert client.post(reverse("web:what-if-cancel", args=[sweep.pk])).status_code == 302
    assert reader.get(address).context["going"] == 0


def test_a_setting_by_name_changes_all_its_addresses(planner: User) -> None:
    sweep = sweep_create(
        owner=planner, document=DOCUMENT, axes=(Axis("growth", (1, 3)),), enqueue=False
    )
    documents = [values_by_address(parse(run.document)) for run in sweep.runs.order_by("cell")]
    scales = [key for key in documents[0] if key.endswith(".scale")]
    assert scales
    for key in scales:
        assert documents[1][key] == pytest.approx(3 * documents[0][key])


def test_the_api(api: APIClient, reader: APIClient, pools: Scenario) -> None:
    body = {"scenario": pools.name, "vary": [{"key": TTFT, "values": [500, 1000]}]}
    assert reader.post("/api/v1/sweeps/", body, format="json").status_code == 403
    sent = api.post("/api/v1/sweeps/", body, format="json")
    assert sent.status_code == 202 and sent.json()["grid"]["going"] == 2
    over(Sweep.objects.get().runs.get(cell=0), 7.0)
    grid = reader.get(sent["Location"], {"figure": "gpu_hours"}).json()["grid"]
    assert (grid["unit"], grid["rows"][0][0]["value"]) == ("h", 2.8)
    assert reader.get("/api/v1/sweeps/").json()["results"][0]["axes"][0]["key"] == TTFT
    key = {"Idempotency-Key": "once"}
    once = [api.post("/api/v1/sweeps/", body, format="json", headers=key) for _ in range(2)]
    assert once[0]["Location"] == once[1]["Location"] and Sweep.objects.count() == 2
    other = body | {"vary": [{"key": TTFT, "values": [1]}]}
    assert api.post("/api/v1/sweeps/", other, format="json", headers=key).status_code == 422
    assert api.post(f"{sent['Location']}cancel/").json()["grid"]["going"] == 0
    assert api.delete(sent["Location"]).status_code == 204
    assert api.post("/api/v1/sweeps/", {"vary": []}, format="json").status_code == 400
