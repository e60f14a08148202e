"""What-if in place: the law that nothing changed gives the run's own plan, and what moves do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.urls import reverse
from rest_framework.test import APIClient

from planner.domain.whatif.answer import (
    CLOSED_FORMS,
    HELD,
    NEVER,
    WhatIf,
)
from planner.domain.whatif.static_fleet import IN_PROPORTION
from planner.errors import NotReady, PlannerError
from planner.inputs.scenario.address import flat
from planner.inputs.scenario.document import (
    edit,
    parse,
)
from planner.models import Run, Scenario, User
from planner.services.whatif import Changes, kept_of, run_what_if, what_if_replay
from tests.planner.management.test_commands import SCENARIO, answer, command
from tests.planner.management.test_commands import folder as folder  # the fixture
from tests.planner.samples import client_of
from tests.planner.web.pages import forms_with_token_in_address, signed_in, text_of

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


def totals(moved: WhatIf) -> tuple[float, float, float, int]:
    assert moved.totals is not None, moved.conflict
    return moved.totals.usd, moved.totals.gpu_hours, moved.totals.kwh, moved.totals.starts


def own(run: Run) -> tuple[float, float, float, int]:
    return tuple(run.result["totals"][name] for name in ("usd", "gpu_hours", "kwh", "starts"))  # type: ignore[return-value]


def test_moves_of_a_kept_plan(folder: Path, planner: User, viewer: User) -> None:
    run = planned(folder)
    # Nothing changed: the run's own plan.
    same = run_what_if(run, Changes())
    assert totals(same) == pytest.approx(own(run), rel=1e-9)
    decided = {row["period"]: row["target"] for row in run.result["decisions"]}
    assert {row.begins: row.replicas for row in same.periods} == decided
    # What the plan of the scenario with that setting comes to, to the cent.
    for changes, setting in (
        (Changes(growth=2.0), {"traffic.sources[0].scale": 2.0}),
        (Changes(spare=0), {"objective.spare.instances": 0}),
    ):
        asked = own(planned(folder, **setting))
        assert totals(run_what_if(run, changes)) == pytest.approx(asked, rel=1e-6)
    usd = totals(run_what_if(run, Changes(prices={"G": 1.5})))[0]
    assert usd == pytest.approx(1.5 * own(run)[0])
    assert totals(run_what_if(run, Changes(quantile=0.1)))[1] <= own(run)[1]
    # Limits: by closed forms, which say so; the same limits change nothing.
    looser = run_what_if(run, Changes(tiers={"chat": {"ttft_ms": 4000, "tbt_ms": 400}}))
    assert looser.sizes[0].input_tps > looser.sizes[0].before_tps and CLOSED_FORMS in looser.notes
    tight = run_what_if(run, Changes(tiers={"chat": {"tbt_ms": 1.0}}))
    assert tight.totals is None and "Nothing of this scenario serves m" in tight.conflict
    none = run_what_if(run, Changes(without=("G",)))
    assert none.status == "infeasible" and "east" in none.conflict
    for wrong in (
        Changes(growth=0),
        Changes(quantile=0.99),
        Changes(prices={"H": 1.0}),
        Changes(tiers={"batch": {"ttft_ms": 1}}),
        Changes(tiers={"chat": {"x": 1}}),
    ):
        with pytest.raises(PlannerError):
            run_what_if(run, wrong)
    _command(run)
    _pages(run, planner, viewer)
    _replay(run, planner)
    _api(run, planner, client_of(viewer))


def test_a_comparison_s_what_ifs_are_of_the_plan_it_shows(folder: Path, viewer: User) -> None:
    """Where the recommended policy plans on another forecast too."""
    policies = ["flat-min", {"name": "lt-i", "load_factor": 0.5}]
    changed = CHANGED | {"policies": policies, "objective.spare.instances": 2}
    (folder / "plan.yml").write_text(edit(SCENARIO, changed))
    run = Run.objects.get(pk=answer("compare", folder / "plan.yml", "--rehearse", 0)["run"])
    assert run.result["recommended"]["policy"] == "lt-i-last-value"
    same, shown = run_what_if(run, Changes()).totals, run.result["plan"]["totals"]
    page = text_of(signed_in(viewer).get(reverse("web:run-what-if", args=[run.pk])))
    assert same is not None and same.usd == pytest.approx(shown["usd"], rel=1e-3)
    assert "another plan" not in page
    # For that forecast's mean, where the scenario's own plan is for a quantile of another.
    own_plan = Run.objects.get(pk=answer("plan", folder / "plan.yml")["run"])
    heights = [
        {run_kept.level for run_kept in kept_of(series).basis.series} for series in (run, own_plan)
    ]
    assert heights[0] == {None} and None not in heights[1]


def test_the_what_if_of_a_flat_fleet_is_that_fleet(folder: Path, viewer: User) -> None:
    """Where one is recommended: whatever is taken has four here, so what is simplest is."""
    four = {"model": "m", "region": "east", "gpu": "G", "replicas": 4, "minimum": 4}
    changed = {"fleet.today": [four], "policies": ["today"], "objective.spare.instances": 0,
               "traffic.bin_s": 300, "horizon.duration_s": 300}  # fmt: skip
    (folder / "plan.yml").write_text(edit(SCENARIO, CHANGED | changed))
    run = Run.objects.get(pk=answer("compare", folder / "plan.yml", "--rehearse", 0)["run"])
    assert run.result["recommended"]["policy"] in ("today", "flat-peak", "flat-before")
    same = run_what_if(run, Changes())
    cost = run.result["recommended"]["cost_usd"]
    assert same.flat and {row.replicas for row in same.periods} == {4} == {same.least, same.most}
    assert totals(same)[0] == pytest.approx(cost, rel=0.01) and same.notes == (NEVER,)
    # As many as carry so many times C(4), and no fewer do.
    carries = kept_of(run).basis.pool_tps[0, 0, 0]
    for growth in (0.5, 1.3, 2.0):
        now = run_what_if(run, Changes(growth=growth))
        assert carries[now.most - 1] >= growth * carries[3] * (1 - 1e-9) > carries[now.most - 2]
        assert totals(now)[0] == pytest.approx(totals(same)[0] * now.most / 4)
        assert IN_PROPORTION in now.notes
    assert run_what_if(run, Changes(spare=2)).most == 6
    assert HELD in run_what_if(run, Changes(quantile=0.9)).notes
    assert totals(run_what_if(run, Changes(prices={"G": 3.0})))[0] == pytest.approx(
        3 * totals(same)[0]
    )
    tight = run_what_if(run, Changes(tiers={"chat": {"ttft_ms": 600}}))
    assert tight.most >= 4 and tight.sizes[0].input_tps < tight.sizes[0].before_tps
    many = run_what_if(run, Changes(growth=20.0))
    assert many.totals is None and "in east, where at most 32 may run" in many.conflict
    code, out, _ = command("whatif", run.pk, "--growth", 20)
    assert code == 0 and out.startswith("No such fleet. It would take")
    page = text_of(signed_in(viewer).get(reverse("web:run-what-if", args=[run.pk])))
    assert "The flat fleet" in page and "Quantile planned for" not in page
    # Of its one bin the forecast is a line as long as the bin, which a point would not be.
    shown = signed_in(viewer).get(reverse("web:run", args=[run.pk])).context["forecast_figure"]
    assert {len(trace["x"]) for trace in shown["data"]} == {2}


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
    free = run_what_if(run, Changes())
    assert {limit.gpu: limit.most > 0 for limit in free.gpus} == {"G": True, "H": False}
    assert totals(run_what_if(run, Changes(mix={"G": 1.0}))) == totals(free)
    half = run_what_if(run, Changes(mix={"G": 0.5}))
    most = {limit.gpu: limit.most for limit in half.gpus}
    assert 0 < most["G"] <= 0.5 * half.gpus[0].of_all and most["H"] > 0
    assert totals(free)[0] < totals(half)[0]
    assert "G in east: at most" in half.notes[0] and "50% asked for" in half.notes[0]
    none = run_what_if(run, Changes(mix={"G": 0.0, "H": 0.0}))
    assert none.totals is None and "The shares leave at most 0 G in east" in none.notes[0]
    address = reverse("web:run-what-if", args=[run.pk])
    assert "H, GPUs at most 0" in text_of(signed_in(planner).get(address, {"mix.G": "50"}))
    replayed = what_if_replay(run=run, user=planner, changes=Changes(mix={"G": 0.5}))
    (folder / "plan.yml").write_text(replayed.document)
    again = Run.objects.get(pk=answer("plan", folder / "plan.yml")["run"])
    # As many replicas in every period; where nobody says what runs now, what the mix lets run.
    rows = again.result["decisions"]
    assert {period.begins: period.replicas for period in half.periods} == {
        row["period"]: sum(r["target"] for r in rows if r["period"] == row["period"])
        for row in rows
    }
    assert max(row["target"] for row in rows if row["gpu"] == "G") <= most["G"]
    with pytest.raises(PlannerError, match="mix of G"):
        run_what_if(run, Changes(mix={"G": 50.0}))


def _command(run: Run) -> None:
    words = ("--price", "G=2", "--limit", "chat.ttft_ms=1000", "--growth", "1")
    assert answer("whatif", run.pk, *words)["totals"]["usd"] == pytest.approx(2 * own(run)[0])
    code, out, _ = command("whatif", run.pk, "--without", "G")
    assert code == 0 and out.startswith("No plan.")
    code, out, _ = command("whatif", run.pk)
    assert code == 0 and "GPU-hours" in out and "binds: " in out
    code, _, err = command("whatif", run.pk, "--price", "G")
    assert code == 2 and "NAME=NUMBER" in err


def _pages(run: Run, planner: User, viewer: User) -> None:
    address = reverse("web:run-what-if", args=[run.pk])
    reader = signed_in(viewer)
    page = reader.get(address)
    assert "Nothing is moved yet" in text_of(page) and "Replay this" not in text_of(page)
    assert address in reader.get(reverse("web:run", args=[run.pk])).content.decode()
    moved = {"growth": "1.0", "price.G": "2.0", "spare": "1"}
    htmx = {"HX-Request": "true", "HX-Target": "what-if-answer"}
    part = reader.get(address, moved, headers=htmx)
    assert "+100.0%" in text_of(part) and "<html" not in part.content.decode()
    assert reader.get(address, {"growth": "much"}).status_code == 400
    assert reader.post(f"{address}replay/", moved).status_code == 403
    panel = signed_in(planner).get(address)
    assert "Replay this" in text_of(panel) and forms_with_token_in_address(panel) == []
    # What is replayed is what the answer is about.
    answer = signed_in(planner).get(address, {"growth": "1.5", "x": "y"}, headers=htmx)
    sent = answer.content.decode().partition("what-if-replay")[2]
    assert 'name="growth" value="1.5"' in sent and 'name="x"' not in sent
    # An address that is sent shows what was asked: its sliders are what a replay takes.
    moved = reader.get(address, {"growth": "1.5"}).content.decode()
    assert 'name="growth" min="0.25" max="4.0" step="0.05" value="1.5"' in re.sub(
        r"\s+", " ", moved
    )


def _replay(run: Run, planner: User) -> None:
    started = what_if_replay(
        run=run, user=planner, changes=Changes(growth=1.5, quantile=0.8, prices={"G": 2.0})
    )
    assert started.kind == run.kind and started.name == "By hand, what if 1"
    values = flat(parse(started.document))
    assert values["traffic.sources[0].scale"] == 1.5 and values["forecast.quantile"] == 0.8
    assert values["regions[east].usd_per_gpu_hour.G"] == 4.0
    assert "scale: 1.5" not in Run.objects.get(pk=run.pk).document
    assert Scenario.objects.get().document == started.document
    with pytest.raises(PlannerError, match="Nothing is changed"):
        what_if_replay(run=run, user=planner, changes=Changes())


def _api(run: Run, planner: User, reader: APIClient) -> None:
    address = f"/api/v1/runs/{run.pk}/what-if/"
    sent = reader.post(address, {"prices": {"G": 2.0}}, format="json").json()
    assert sent["totals"]["usd"] == pytest.approx(2 * own(run)[0]) and sent["notes"]
    assert reader.post(address, {"grwth": 2.0}, format="json").status_code == 400
    assert reader.post(f"{address}replay/", {"growth": 2.0}, format="json").status_code == 403
    asked = client_of(planner).post(f"{address}replay/", {"growth": 2.0}, format="json")
    assert asked.status_code == 202 and asked.json()["name"] == "By hand, what if 2"
    key, replay = {"Idempotency-Key": "once"}, f"{address}replay/"
    twice = [
        client_of(planner).post(replay, {"growth": 3.0}, format="json", headers=key).json()
        for _ in range(2)
    ]
    assert twice[0]["id"] == twice[1]["id"]
    refused = client_of(planner).post(replay, {"growth": 2.0}, format="json", headers=key)
    assert refused.status_code == 422


def test_a_run_that_keeps_no_plan_says_so(planner: User) -> None:
    run = Run.objects.create(kind=Run.Kind.PLAN, state=Run.State.COMPLETED, store="runs/none")
    with pytest.raises(NotReady, match="run it again"):
        run_what_if(run, Changes())
    run.kind = Run.Kind.SIMULATE
    with pytest.raises(NotReady, match="have a plan"):
        run_what_if(run, Changes())
