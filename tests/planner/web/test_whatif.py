"""What-ifs: nothing changed gives the run's own plan, and a change what a plan of it gives."""

from pathlib import Path
from typing import Any

import pytest
from django.http import QueryDict
from django.urls import reverse
from rest_framework.test import APIClient

from planner.domain.formats import figure
from planner.domain.report import Chart, Table
from planner.domain.whatif.answer import ESTIMATED_SIZES, NOT_SIMULATED, STATIC_FLEET, WhatIf
from planner.domain.whatif.figures import PLANNED, SIMULATED
from planner.domain.whatif.settings import chosen_of
from planner.domain.whatif.static_fleet import IN_PROPORTION
from planner.errors import NotReady, PlannerError
from planner.inputs.scenario.address import values_by_address
from planner.inputs.scenario.document import edit, parse
from planner.models import Run, Scenario, Sweep, User
from planner.services.whatif import (
    base_of,
    what_if_answer,
    what_if_cells,
    what_if_replay,
    what_if_simulate,
)
from planner.web.pages.whatif import present_text, question_of
from tests.planner.management.calling import SCENARIO, answer, command
from tests.planner.samples import client_of
from tests.planner.web.pages import forms_with_token_in_address, json_in, signed_in, text_of

pytestmark = pytest.mark.django_db

# With work that may wait, and an instance of every pool to spare.
CHANGED = {
    "tiers": [
        {"name": "chat", "ttft_ms": 1000, "tbt_ms": 100},
        {"name": "batch", "e2e_ms": 3_600_000, "deferrable": True},
    ],
    "traffic.sources[0].tiers": {"chat": 0.8, "batch": 0.2},
    "objective.spare.instances": 1,
}


def planned(folder: Path, **more: object) -> Run:
    (folder / "plan.yml").write_text(edit(SCENARIO, CHANGED | more))
    return Run.objects.get(pk=answer("plan", folder / "plan.yml")["run"])


def asked(run: Run, **sent: object) -> WhatIf:
    return what_if_answer(run, chosen_of(sent))


def totals(moved: WhatIf) -> tuple[float, float, float, int]:
    assert moved.totals is not None, moved.conflict
    return moved.totals.usd, moved.totals.gpu_hours, moved.totals.kwh, moved.totals.starts


def own(run: Run) -> tuple[float, float, float, int]:
    return tuple(run.result["totals"][name] for name in ("usd", "gpu_hours", "kwh", "starts"))  # type: ignore[return-value]


def test_planned_figures_that_differ_from_simulated_ones_have_other_names() -> None:
    planned = {shown.name: shown.label for shown in PLANNED}
    simulated = {shown.name: shown.label for shown in SIMULATED}
    assert [name for name, label in planned.items() if simulated[name] == label] == ["replicas"]


def test_a_cached_share_moves_capacities_as_a_plan_with_it_does(folder: Path) -> None:
    caching = {"serving": [{"prefix_caching": True}]}
    share = {"traffic.sources[0].cached_share": 0.3}
    run = planned(folder, **caching, **share)
    same = asked(run, values={"cached": 30})
    assert totals(same) == pytest.approx(own(run), rel=1e-9)
    more, none = (asked(run, values={"cached": percent}) for percent in (70, 0))
    assert more.sizes[0].input_tps > more.sizes[0].before_tps > none.sizes[0].input_tps
    assert totals(more)[1] <= own(run)[1] <= totals(none)[1]
    stated = planned(folder, **caching, **{"traffic.sources[0].cached_share": 0.7})
    sized = asked(stated).sizes[0].before_tps
    assert more.sizes[0].input_tps == pytest.approx(sized, rel=0.15)
    without = planned(folder, **share)  # no prefix caches: the share changes nothing
    with pytest.raises(PlannerError):
        asked(without, values={"cached": 70})


def test_a_shorter_interval_needs_no_more_replicas_at_any_time(folder: Path) -> None:
    run = planned(folder, horizon={"period_s": 600, "duration_s": 1200})
    same, shorter = (asked(run, values={"interval": minutes}) for minutes in (10, 5))
    assert totals(same) == pytest.approx(own(run), rel=1e-9)
    assert [row.begins for row in shorter.periods[::2]] == [row.begins for row in same.periods]
    for i, row in enumerate(shorter.periods):
        assert row.replicas <= same.periods[i // 2].replicas
        assert row.demand_tps <= same.periods[i // 2].demand_tps
    for minutes in (4.5, 20):
        with pytest.raises(PlannerError):
            asked(run, values={"interval": minutes})


def test_a_field_with_the_present_value_changes_nothing(folder: Path) -> None:
    settings = base_of(planned(folder)).settings
    sent = [f"setting={name}&value={present_text(settings[name])}" for name in ("growth", "spare")]
    question = question_of(settings, QueryDict("&".join(sent)))
    assert len(question.lines) == 2 and not question.fixed and not question.axes


def test_moves_of_a_kept_plan(folder: Path, planner: User, viewer: User) -> None:
    run = planned(folder)
    # Nothing changed: the run's own plan.
    same = asked(run)
    assert totals(same) == pytest.approx(own(run), rel=1e-9)
    decided = {row["period"]: row["target"] for row in run.result["decisions"]}
    assert {row.begins: row.replicas for row in same.periods} == decided
    # What the plan of the scenario with that setting comes to, to the cent.
    for sent, setting in (
        ({"growth": 2.0}, {"traffic.sources[0].scale": 2.0}),
        ({"spare": 0}, {"objective.spare.instances": 0}),
    ):
        stated = own(planned(folder, **setting))
        assert totals(asked(run, **sent)) == pytest.approx(stated, rel=1e-6)
    usd = totals(asked(run, prices={"G": 1.5}))[0]
    assert usd == pytest.approx(1.5 * own(run)[0])
    assert totals(asked(run, quantile=0.1))[1] <= own(run)[1]
    # Limits: by closed forms, which say so; the same limits change nothing.
    looser = asked(run, tiers={"chat": {"ttft_ms": 4000, "tbt_ms": 400}})
    assert (
        looser.sizes[0].input_tps > looser.sizes[0].before_tps and ESTIMATED_SIZES in looser.notes
    )
    tight = asked(run, tiers={"chat": {"tbt_ms": 1.0}})
    assert tight.totals is None and "m: " in tight.conflict
    none = asked(run, without=("G",))
    assert none.status == "infeasible" and "east" in none.conflict
    for wrong in (
        {"growth": 0},
        {"quantile": 0.99},
        {"prices": {"H": 1.0}},
        {"tiers": {"batch": {"ttft_ms": 1}}},
        {"tiers": {"chat": {"x": 1}}},
        {"values": {"horizon.period_s": 1800}},
        {"values": {"tiers[batch].e2e_ms": 1000}},
        {"values": {"nothing.here": 1}},
    ):
        with pytest.raises(PlannerError):
            asked(run, **wrong)
    _command(run)
    _pages(run, planner, viewer)
    _replay(run, planner)
    _api(run, planner, client_of(viewer))


def test_a_comparison_s_what_ifs_are_of_the_plan_it_shows(folder: Path, viewer: User) -> None:
    policies = ["flat-min", {"name": "lt-i", "load_factor": 0.5}]
    changed = CHANGED | {"policies": policies, "objective.spare.instances": 2,
                         "test_days": []}  # fmt: skip
    (folder / "plan.yml").write_text(edit(SCENARIO, changed))
    run = Run.objects.get(pk=answer("compare", folder / "plan.yml")["run"])
    shown = [run.result["plan"]["totals"][name] for name in ("usd", "gpu_hours", "kwh", "starts")]
    assert totals(asked(run)) == pytest.approx(shown, rel=1e-9)
    page = signed_in(viewer).get(f"/runs/{run.pk}/what-if/")
    simulated_usd = run.result["recommended"]["cost_usd"]
    assert figure(simulated_usd, "$") in page.context["report"].answer


@pytest.mark.parametrize("spare", [0, 1])
def test_a_what_if_without_changes_is_the_recommendation(
    folder: Path, spare: int, planner: User
) -> None:
    """Whether the scenario or the level of assurance adds the spare replica; its number is all."""
    changed = {"objective.spare.instances": spare, "policies": ["lt-i"], "traffic.bin_s": 300,
               "horizon.duration_s": 600, "test_days": [{"kind": "replica_lost"}]}  # fmt: skip
    (folder / "plan.yml").write_text(edit(SCENARIO, changed))
    run = Run.objects.get(pk=answer("compare", folder / "plan.yml")["run"])
    recommended = run.result["recommended"]
    same = asked(run)
    assert same.recommended is not None and same.recommended.policy == recommended["policy"]
    assert same.recommended.cost_usd == recommended["cost_usd"]
    totals_of_rows = [sum(row["replicas"]) for row in recommended["timetable"]["rows"]]
    assert (same.least, same.most) == (min(totals_of_rows), max(totals_of_rows))
    assert totals(same)[0] == pytest.approx(recommended["cost_usd"], rel=0.02)
    assert totals(asked(run, spare=1)) == totals(same)
    assert asked(run, spare=2).least > same.least > asked(run, spare=0).least
    replayed = what_if_replay(run=run, user=planner, chosen=chosen_of({"spare": 0}))
    scenario = parse(replayed.document)
    assert (scenario.objective.spare.instances, scenario.assurance) == (0, "economy")


def test_the_what_if_of_a_flat_fleet_is_that_fleet(
    folder: Path, planner: User, viewer: User
) -> None:
    """Where one is recommended: whatever is taken has four here, so what is simplest is."""
    four = {"model": "m", "region": "east", "gpu": "G", "replicas": 4, "minimum": 4}
    changed = {"fleet.today": [four], "policies": ["today"], "objective.spare.instances": 0,
               "traffic.bin_s": 300, "horizon.duration_s": 300, "test_days": []}  # fmt: skip
    (folder / "plan.yml").write_text(edit(SCENARIO, CHANGED | changed))
    run = Run.objects.get(pk=answer("compare", folder / "plan.yml")["run"])
    assert run.result["recommended"]["policy"] in ("today", "flat-peak", "flat-before")
    same = asked(run)
    cost = run.result["recommended"]["cost_usd"]
    assert same.flat and {row.replicas for row in same.periods} == {4} == {same.least, same.most}
    assert totals(same)[0] == pytest.approx(cost, rel=0.01) and same.notes == (NOT_SIMULATED,)
    # Three were too few and four suffice, so the load is between their capacities.
    carries = base_of(run).plan.basis.pool_tps[0, 0, 0]
    for growth in (0.5, 1.3, 2.0):
        now = asked(run, growth=growth)
        assert carries[now.most - 1] > growth * carries[2] * (1 - 1e-9)
        assert now.most == 1 or growth * carries[3] > carries[now.most - 2]
        usd, *_, starts = totals(now)
        assert starts == max(0, now.most - 4)  # of 60 s each, in a window of 300 s
        assert usd == pytest.approx(totals(same)[0] * (now.most + starts * 60 / 300) / 4)
        assert IN_PROPORTION in now.notes
    assert asked(run, spare=2).most == 6
    assert STATIC_FLEET in asked(run, quantile=0.9).notes
    assert totals(asked(run, prices={"G": 3.0}))[0] == pytest.approx(3 * totals(same)[0])
    tight = asked(run, tiers={"chat": {"ttft_ms": 600}})
    assert tight.most >= 4 and tight.sizes[0].input_tps < tight.sizes[0].before_tps
    many = asked(run, growth=20.0)
    assert many.totals is None and "in east needs" in many.conflict
    code, out, _ = command("whatif", run.pk, "--growth", 20)
    assert code == 0 and out.startswith("No such fleet")
    page = signed_in(viewer).get(reverse("web:run-what-if", args=[run.pk]))
    assert 'value="growth"' in page.content.decode()
    assert 'value="quantile"' not in page.content.decode()
    run.result["recommended"] |= {"policy": "flat-before", "parameters": {"replicas": 4.0}}
    run.save()
    run.refresh_from_db()
    simulated = what_if_simulate(run=run, user=planner, chosen=chosen_of({"growth": 1.3}))
    assert simulated.options["policy"] == "flat-before"
    # Of its one bin the forecast is a line as long as the bin, which a point would not be.
    shown = signed_in(viewer).get(reverse("web:run", args=[run.pk]))
    demand = [trace for trace in json_in(shown, "over-time-1-data")["data"]
              if trace["name"] == "Latency-sensitive demand"]  # fmt: skip
    assert [len(trace["x"]) for trace in demand] == [2]


def test_a_gpu_type_is_held_to_a_share_that_can_be_replayed(folder: Path, planner: User) -> None:
    """A type was used or not; nobody could ask for half of each."""
    g = {"name": "G", "memory_gb": 80, "idle_w": 60, "prefill_w": 400, "decode_w": 250}
    speed = {"model": "m", "alpha_ms": 12, "beta_ms": 0.15, "gamma_ms": 12, "delta_ms": 0.06}
    east = {
        "name": "east", "capacity": {"G": 32, "H": 32}, "usd_per_gpu_hour": {"G": 2, "H": 3},
        "carbon_g_per_kwh": 400, "pue": 1.2,
    }  # fmt: skip
    two = {
        "gpus": [g, g | {"name": "H"}],
        "profiles": [speed | {"gpu": "G"}, speed | {"gpu": "H"}],
        "regions": [east],
        "traffic.sources[0].scale": 3.0,
    }
    run = planned(folder, **two)
    free = asked(run)
    assert {limit.gpu: limit.most > 0 for limit in free.gpus} == {"G": True, "H": False}
    assert totals(asked(run, mix={"G": 1.0})) == totals(free)
    half = asked(run, mix={"G": 0.5})
    most = {limit.gpu: limit.most for limit in half.gpus}
    assert 0 < most["G"] <= 0.5 * half.gpus[0].of_all and most["H"] > 0
    assert totals(free)[0] < totals(half)[0]
    assert "G in east" in half.notes[0] and "50%" in half.notes[0]
    none = asked(run, mix={"G": 0.0, "H": 0.0})
    assert none.totals is None and "regions[east].capacity[G] = 0" in none.notes[0]
    replayed = what_if_replay(run=run, user=planner, chosen={"mix.G": 50.0})
    (folder / "plan.yml").write_text(replayed.document)
    again = Run.objects.get(pk=answer("plan", folder / "plan.yml")["run"])
    # As many replicas in every period; where nobody says what runs now, what the mix lets run.
    rows = again.result["decisions"]
    assert {period.begins: period.replicas for period in half.periods} == {
        row["period"]: sum(r["target"] for r in rows if r["period"] == row["period"])
        for row in rows
    }
    assert max(row["target"] for row in rows if row["gpu"] == "G") <= most["G"]
    with pytest.raises(PlannerError, match="share"):
        asked(run, mix={"G": 50.0})


def _command(run: Run) -> None:
    flags = ("--price", "G=2", "--limit", "chat.ttft_ms=1000", "--growth", "1")
    assert answer("whatif", run.pk, *flags)["totals"]["usd"] == pytest.approx(2 * own(run)[0])
    code, out, _ = command("whatif", run.pk, "--without", "G")
    assert code == 0 and out.startswith("No such plan")
    code, out, _ = command("whatif", run.pk)
    assert code == 0 and "GPU-hours" in out and "%" not in out.splitlines()[0]
    code, out, _ = command("whatif", run.pk, "--price", "G=2")
    assert code == 0 and "+100.0%" in out.splitlines()[0]
    code, _, err = command("whatif", run.pk, "--price", "G")
    assert code == 2 and "NAME=NUMBER" in err
    once, thrice = (answer("whatif", run.pk, "--price", f"G={n}", "--simulate") for n in (1, 3))
    assert once["kind"] == "simulate" and Run.objects.get(pk=once["run"]).result == once
    assert thrice["cost_usd"] == pytest.approx(3 * once["cost_usd"])
    assert command("whatif", run.pk, "--simulate", "--growth", "1.1")[0] == 0


def _pages(run: Run, planner: User, viewer: User) -> None:
    address, start = (
        reverse(f"web:{n}", args=[run.pk]) for n in ("run-what-if", "run-what-if-start")
    )
    reader, writer = signed_in(viewer), signed_in(planner)
    page = reader.get(address)
    assert start not in page.content.decode()
    assert address in reader.get(reverse("web:run", args=[run.pk])).content.decode()
    # One value of each setting: before and now. An address with the name of a setting is the same.
    one = {"setting": ["price.G", "spare"], "value": ["2.0", "1"]}
    htmx = {"HX-Request": "true", "HX-Target": "what-if-answers"}
    part = reader.get(address, one, headers=htmx)
    assert "+100.0%" in text_of(part) and "<html" not in part.content.decode()
    assert "+100.0%" in text_of(reader.get(address, {"price.G": "2.0"}))
    assert "+100.0%" not in text_of(page)
    assert reader.get(address, {"growth": "much"}).status_code == 400
    assert reader.get(address, {"setting": "x", "value": "1"}).status_code == 400
    panel = writer.get(address, one)
    assert start in panel.content.decode() and forms_with_token_in_address(panel) == []
    assert panel.context["choices"] == [(0, "")] and page.context["choices"] == []
    _ranges(run, address, start, planner)
    # The answer that is started is the one that was shown.
    sent = writer.post(start, one | {"action": "scenario"})
    stored = Scenario.objects.latest("pk")
    assert sent.url == reverse("web:scenario", args=[stored.pk])
    assert values_by_address(parse(stored.document))["regions[east].usd_per_gpu_hour.G"] == 4.0
    stored.delete()
    simulated = Run.objects.get(pk=int(writer.post(start, one).url.split("/")[2]))
    assert (simulated.kind, simulated.options) == (Run.Kind.SIMULATE, {"policy": "lt-i"})
    assert values_by_address(parse(simulated.document))["regions[east].usd_per_gpu_hour.G"] == 4.0
    traded = writer.post(start, {"action": "trade-off", "of": "cost,carbon"})
    assert Run.objects.get(pk=int(traded.url.split("/")[2])).kind == Run.Kind.PARETO


def _ranges(run: Run, address: str, start: str, planner: User) -> None:
    """A range makes a line, two make a heat map; each cell is the what-if of its values."""
    writer = signed_in(planner)
    line = {"setting": "growth", "value": "1", "to": "2", "steps": "3"}
    shown = writer.get(address, line)
    while shown.context["going"]:
        shown = writer.get(address, line)
    (series,) = drawn(shown, Chart).series
    assert series.x == (1.0, 1.5, 2.0)
    assert series.y == pytest.approx([totals(asked(run, growth=x))[0] for x in series.x])
    two = {name: [value, "0" if name == "value" else "1" if name == "to" else "spare"]
           for name, value in line.items() if name != "steps"}  # fmt: skip
    grid = writer.get(address, two | {"steps": ["3", "2"], "figure": "replicas"})
    heat = drawn(grid, Table)
    assert [len(row) for row in heat.rows] == [3, 3, 3] and len(grid.context["choices"]) == 6
    # A row is started by its place.
    writer.post(start, line | {"action": "scenario", "cell": "1"})
    stored = Scenario.objects.latest("pk")
    assert values_by_address(parse(stored.document))["traffic.sources[0].scale"] == 1.5
    stored.delete()
    assert writer.post(start, line | {"action": "scenario", "cell": "9"}).status_code == 400
    many = line | {"steps": "50"}
    assert writer.get(address, many).status_code == 400
    sweep = writer.post(start, line | {"action": "grid"})
    made = Sweep.objects.get()
    assert sweep.url == reverse("web:what-if", args=[made.pk])
    assert [values_by_address(parse(cell.document))["traffic.sources[0].scale"]
            for cell in made.runs.order_by("cell")] == [1.0, 1.5, 2.0]  # fmt: skip
    assert "Demand" in text_of(writer.get(sweep.url))


def drawn(page: Any, kind: type[Any]) -> Any:
    """Return the first block of a kind in the report of a page."""
    blocks = [block for section in page.context["report"].sections for block in section.blocks]
    return next(block for block in blocks if isinstance(block, kind))


def test_a_front_s_plans_become_scenarios(folder: Path, planner: User) -> None:
    run = Run.objects.get(pk=answer("pareto", folder / "plan.yml", "--points", 3)["run"])
    writer = signed_in(planner)
    for name in ("run", "run-what-if"):
        page = writer.get(reverse(f"web:{name}", args=[run.pk]))
        assert page.context["choices"] == []  # the plan is as good as its only point
        knee = run.result["knee"]
        assert page.context["cell"] == (len(run.result["points"]) - 1 if knee is None else knee)
    start = reverse("web:run-what-if-start", args=[run.pk])
    writer.post(start, {"action": "scenario", "cell": "0"})
    (folder / "plan.yml").write_text(Scenario.objects.get().document)
    planned = answer("plan", folder / "plan.yml")["totals"]
    assert planned["carbon_kg"] == pytest.approx(run.result["points"][0]["second"], rel=1e-2)
    assert writer.post(start, {"action": "scenario", "cell": "99"}).status_code == 400


def test_cells_are_answered_within_the_time_and_continue(folder: Path) -> None:
    run = planned(folder)
    cells = [{"growth": value} for value in (1.1, 1.2, 1.3)]
    first = what_if_cells(run, cells, within_s=0.0)
    assert [found is not None for found in first] == [True, False, False]
    again = what_if_cells(run, cells, within_s=0.0)
    assert [found is not None for found in again] == [True, True, False]
    last = what_if_cells(run, cells, within_s=60.0)
    for found, chosen in zip(last, cells, strict=True):
        assert isinstance(found, WhatIf) and totals(found) == totals(what_if_answer(run, chosen))


def test_one_question_has_one_number(folder: Path) -> None:
    """What-if, sweep and plan agree, and each plan of a front is the plan within its bound."""
    path, base = folder / "plan.yml", edit(SCENARIO, {"forecast.quantile": 0.8})
    path.write_text(base)
    run = Run.objects.get(pk=answer("plan", path)["run"])
    for sent, address, value in (
        ({"quantile": 0.9}, "forecast.quantile", 0.9),
        ({"prices": {"G": 1.5}}, "regions[east].usd_per_gpu_hour.G", 3.0),
        ({"values": {"objective.minimise": "energy"}}, "objective.minimise", "energy"),
    ):
        path.write_text(base)
        (cells,) = answer("sweep", path, "--vary", f"{address}={value}")["rows"]
        path.write_text(edit(base, {address: value}))
        stated = own(Run.objects.get(pk=answer("plan", path)["run"]))
        assert totals(asked(run, **sent)) == pytest.approx(stated, rel=1e-6)
        assert cells[0]["value"] == pytest.approx(stated[0], rel=1e-9)
    path.write_text(base)
    front = answer("pareto", path, "--of", "cost,carbon", "--points", 3)
    assert front["as_planned"]["cost"] == pytest.approx(own(run)[0], rel=1e-6)
    base = edit(base, {"objective.periods": "all"})  # bounds are on the whole window
    path.write_text(base)
    front = answer("pareto", path, "--of", "cost,carbon", "--points", 3)
    for point in front["points"]:
        bounds = {"objective.periods": "all", "objective.gap": 1e-3,
                  "objective.limits.carbon_kg": point["second"] * (1 + 1e-6)}  # fmt: skip
        path.write_text(edit(base, bounds))
        plan = Run.objects.get(pk=answer("plan", path)["run"])
        assert own(plan)[0] == pytest.approx(point["first"], rel=2e-3)
        assert point["first_bound"] <= own(plan)[0] * (1 + 1e-6)


def _replay(run: Run, planner: User) -> None:
    chosen = chosen_of({"growth": 1.5, "quantile": 0.8, "prices": {"G": 2.0}})
    started = what_if_replay(run=run, user=planner, chosen=chosen)
    assert started.kind == run.kind and started.name == "By hand, what if"
    values = values_by_address(parse(started.document))
    assert values["traffic.sources[0].scale"] == 1.5 and values["forecast.quantile"] == 0.8
    assert values["regions[east].usd_per_gpu_hour.G"] == 4.0
    assert "scale: 1.5" not in Run.objects.get(pk=run.pk).document
    assert Scenario.objects.get().document == started.document
    with pytest.raises(PlannerError, match="No setting"):
        what_if_replay(run=run, user=planner, chosen={})


def _api(run: Run, planner: User, reader: APIClient) -> None:
    address = f"/api/v1/runs/{run.pk}/what-if/"
    sent = reader.post(address, {"prices": {"G": 2.0}}, format="json").json()
    assert sent["totals"]["usd"] == pytest.approx(2 * own(run)[0]) and sent["notes"]
    assert reader.post(address, {"grwth": 2.0}, format="json").status_code == 400
    sent = client_of(planner).post(f"{address}replay/", {"growth": 2.0}, format="json")
    assert sent.status_code == 202 and sent.json()["name"] == "By hand, what if (2)"
    key, replay = {"Idempotency-Key": "once"}, f"{address}replay/"
    twice = [
        client_of(planner).post(replay, {"growth": 3.0}, format="json", headers=key).json()
        for _ in range(2)
    ]
    assert twice[0]["id"] == twice[1]["id"]
    refused = client_of(planner).post(replay, {"growth": 2.0}, format="json", headers=key)
    assert refused.status_code == 422


def test_a_run_without_a_stored_plan_is_refused() -> None:
    run = Run.objects.create(kind=Run.Kind.PLAN, state=Run.State.COMPLETED, store="runs/none")
    with pytest.raises(NotReady, match="Run it again"):
        asked(run)
    run.kind = Run.Kind.SIMULATE
    with pytest.raises(NotReady, match="has no plan"):
        asked(run)
