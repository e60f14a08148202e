"""The editor: a form and a text of the same document."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse

from planner.domain.formats import duration
from planner.inputs.ingest import IngestOptions
from planner.inputs.scenario.document import parse
from planner.models import Run, Scenario, Trace, User
from planner.selectors.scenarios import latest_comparisons
from planner.services.scenarios import scenario_create
from planner.services.traces import trace_ingest_path
from planner.web.forms.launch import LaunchForm
from tests.planner.web.pages import form_values, signed_in, text_of
from tests.planner.web.study import DOCUMENT

HTMX = {"HX-Request": "true", "HX-Target": "editor"}


def url(scenario: Scenario) -> str:
    return reverse("web:scenario", args=[scenario.pk])


def test_saving_the_form_as_it_is_keeps_every_character(client: Client, pools: Scenario) -> None:
    values = form_values(client.get(url(pools)))
    answer = client.post(url(pools), values | {"action": "save"})
    assert answer["Location"] == url(pools)
    pools.refresh_from_db()
    assert pools.document == DOCUMENT and pools.version == 1


def test_a_change_in_the_form_leaves_comments_alone(client: Client, pools: Scenario) -> None:
    values = form_values(client.get(url(pools)))
    values |= {"period_min": "30", "policies": ["flat-peak", "reactive", "lt-i"], "action": "save"}
    assert client.post(url(pools), values).status_code == 302
    pools.refresh_from_db()
    assert "# Kept across edits." in pools.document
    assert "period_s: 1800 # an hour" in pools.document
    assert [p.name for p in parse(pools.document).policies] == ["flat-peak", "reactive", "lt-i"]
    assert pools.version == 2


def test_rows_are_added_and_removed(client: Client, pools: Scenario) -> None:
    values = form_values(client.get(url(pools)))
    grown = form_values(client.post(url(pools), values | {"action": "add-tiers"}))
    assert grown["tiers-TOTAL_FORMS"] == ["2"]
    grown |= {
        "tiers-0-DELETE": "on",
        "tiers-1-name": "NIW",
        "tiers-1-e2e_ms": "3600000",
        "sources-0-tiers": "NIW",
        "action": "save",
    }
    assert client.post(url(pools), grown).status_code == 302
    pools.refresh_from_db()
    (tier,) = parse(pools.document).tiers
    assert (tier.name, tier.e2e_ms, tier.ttft_ms) == ("NIW", 3_600_000, None)


def test_an_empty_new_row_is_no_row(client: Client, pools: Scenario) -> None:
    values = form_values(client.get(url(pools)))
    grown = form_values(client.post(url(pools), values | {"action": "add-today"}))
    assert client.post(url(pools), grown | {"action": "save"}).status_code == 302
    pools.refresh_from_db()
    assert pools.document == DOCUMENT


def test_changes_not_saved_yet_travel_between_the_views(client: Client, pools: Scenario) -> None:
    values = form_values(client.get(url(pools)))
    answer = client.post(url(pools), values | {"seed": "9", "action": "yaml"}, headers=HTMX)
    assert "<html" not in answer.content.decode()
    text = form_values_of_part(answer)["document"][0]
    assert parse(text).seed == 9 and "# the larger one" in text
    back = client.post(
        url(pools), {"mode": "yaml", "document": text, "action": "form"}, headers=HTMX
    )
    assert form_values_of_part(back)["seed"] == ["9"]
    pools.refresh_from_db()
    assert pools.document == DOCUMENT


def form_values_of_part(answer: object) -> dict[str, list[str]]:
    class Whole:
        content = b'<div id="editor">' + answer.content  # type: ignore[attr-defined]

    return form_values(Whole)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("version: 1\nname: [", "not valid YAML"),
        (
            DOCUMENT.replace("    capacity:", "    capacty: {G: 8}\n    capacity:"),
            "capacty: this key",
        ),
    ],
)
def test_text_that_no_form_can_show_stays_text(
    client: Client, pools: Scenario, text: str, says: str
) -> None:
    answer = client.post(url(pools), {"mode": "yaml", "document": text, "action": "form"})
    assert answer.status_code == 422
    assert "line" in text_of(answer) and says in text_of(answer)
    assert form_values(answer)["document"] == [text] and 'id="document"' in str(answer.content)


def test_faults_in_the_text_are_told_by_line(client: Client, pools: Scenario) -> None:
    wrong = DOCUMENT.replace("ttft_ms: 1000", "ttft_ms: soon")
    answer = client.post(url(pools), {"mode": "yaml", "document": wrong, "action": "save"})
    assert answer.status_code == 422
    line = next(i for i, row in enumerate(wrong.splitlines(), 1) if "soon" in row)
    assert f"line {line}: tiers[0].ttft_ms" in text_of(answer)
    assert "soon" in form_values(answer)["document"][0]  # nothing typed is lost


def test_what_saving_would_say_is_asked_while_one_types(client: Client, pools: Scenario) -> None:
    values = form_values(client.get(url(pools))) | {"action": "check"}
    assert client.post(url(pools), values).json() == {"faults": [], "rest": []}
    for field, wrong in {"start": "soon", "tiers-0-name": "", "sources-0-model": "gpt-9"}.items():
        (fault,) = client.post(url(pools), values | {field: wrong}).json()["faults"]
        assert fault["id"] == f"id_{field}" and fault["words"]
    text = {"mode": "yaml", "document": f"{DOCUMENT}sed: 1\n", "action": "check"}
    (rest,) = client.post(url(pools), text).json()["rest"]
    assert "sed: this key is not known" in rest
    pools.refresh_from_db()
    assert pools.document == DOCUMENT


def test_faults_in_the_form_stand_beside_their_field(client: Client, pools: Scenario) -> None:
    values = form_values(client.get(url(pools)))
    values |= {"sources-0-model": "gpt-9", "tiers-0-name": "", "epsilon": "2", "action": "save"}
    answer = client.post(url(pools), values)
    html = answer.content.decode()
    assert 'id="faults"' in answer.content.decode()
    for field in ("id_tiers-0-name", "id_epsilon"):
        row = html[html.index(f'id="{field}"') :][:400]
        assert "invalid-feedback" in row
    values |= {"tiers-0-name": "IW-F", "epsilon": "0.9"}
    answer = client.post(url(pools), values)
    html = answer.content.decode()
    row = html[html.index('id="id_sources-0-model"') :][:400]
    assert answer.status_code == 422
    assert "is not in this scenario" in row
    assert form_values(answer)["epsilon"] == ["0.9"]


def test_two_people_do_not_overwrite_each_other(
    client: Client, colleague: User, pools: Scenario
) -> None:
    form_now = form_values(client.get(url(pools)))
    theirs = form_values(signed_in(colleague).get(url(pools)))
    assert client.post(url(pools), form_now | {"seed": "1", "action": "save"}).status_code == 302
    answer = signed_in(colleague).post(url(pools), theirs | {"seed": "2", "action": "save"})
    assert answer.status_code == 412
    assert "changed by another person" in text_of(answer)
    pools.refresh_from_db()
    assert parse(pools.document).seed == 1


@pytest.fixture
def week(planner: User, tmp_path: Path) -> Trace:
    """The trace that the scenario names: two days by quarters of an hour."""
    file = tmp_path / "week.csv"
    file.write_text(
        "time,requests,input_tokens,output_tokens\n"
        + "\n".join(
            f"{datetime(2024, 5, 18, tzinfo=UTC) + i * timedelta(minutes=15):%Y-%m-%dT%H:%M:%SZ},"
            f"{100 + i % 96},{1000 * (100 + i % 96)},{100 * (100 + i % 96)}"
            for i in range(192)
        )
    )
    options = IngestOptions(name="week.csv", format="demand")
    return trace_ingest_path(path=file, options=options, owner=planner)


def test_each_kind_of_run_starts(client: Client, pools: Scenario) -> None:
    start = reverse("web:scenario-run", args=[pools.pk])
    for kind in ("compare", "forecast", "plan"):
        client.post(start, {"kind": kind})
    client.post(f"{start}?policy=reactive", {"kind": "simulate"})
    assert [run.kind for run in Run.objects.order_by("pk")] == [
        "compare", "forecast", "plan", "simulate",
    ]  # fmt: skip
    assert Run.objects.get(kind="simulate").options == {"policy": "reactive"}
    assert client.post(start, {"kind": "ingest"}).status_code == 400


def test_a_scenario_begins_from_a_trace(client: Client, trace: Trace) -> None:
    page = client.get(reverse("web:scenario-new"))
    assert f"conv ({duration(trace.length_s)}," in text_of(page)
    new = f"{reverse('web:scenario-new')}?trace=conv"
    chart = client.get(new, headers={"HX-Request": "true", "HX-Target": "trace-chart"})
    assert chart.context["trace"] == trace and "<html" not in chart.content.decode()
    values = form_values(client.get(new))
    answer = client.post(new, values | {"name": "Mine", "action": "save"})
    scenario = Scenario.objects.get()
    assert answer["Location"] == url(scenario)
    assert scenario.name == "Mine"
    assert [source.trace for source in parse(scenario.document).traffic.sources] == ["conv"]


def test_a_launch_without_a_trace_is_drafted_and_budgeted(client: Client) -> None:
    """Nothing could be planned before a trace was there."""
    new = reverse("web:scenario-new")
    fields = {name: field.initial for name, field in LaunchForm().fields.items()}
    values = {name: its() if callable(its) else its for name, its in fields.items()}
    asked = {name: its for name, its in values.items() if its is not None}
    asked |= {"launch": "1", "horizon": "year"}
    drafted = client.get(new, asked)
    page = text_of(drafted)
    assert "for the launch of qwen3-32b" in page and "Shape of the day" in page
    answer = client.post(new, form_values(drafted) | {"action": "run"})
    run = Run.objects.get()
    assert answer["Location"] == reverse("web:run", args=[run.pk])
    assert (run.kind, run.options) == ("outlook", {"horizon": "year"})
    refused = client.get(new, asked | {"gpu": "H9", "day": "own", "own_day": "1 2"})
    assert refused.status_code == 400
    assert "Give 24 numbers" in text_of(refused) and "not built in" in text_of(refused)


def test_a_file_opens_in_the_editor_and_comes_back_the_same(
    client: Client, pools: Scenario
) -> None:
    down = client.get(reverse("web:scenario-download", args=[pools.pk]))
    assert down.content.decode() == DOCUMENT
    assert 'filename="two-pools.yaml"' in down["Content-Disposition"]
    opened = client.post(
        reverse("web:scenario-new"), {"file": SimpleUploadedFile("a.yaml", down.content)}
    )
    assert form_values(opened)["document"] == [DOCUMENT]
    wrong = SimpleUploadedFile("a.yaml", b"\xff\xfe\x00\x01")
    answer = client.post(reverse("web:scenario-new"), {"file": wrong})
    assert answer.status_code == 422 and "not UTF-8" in text_of(answer)


def test_copies_are_named_and_scenarios_removed(client: Client, pools: Scenario) -> None:
    copy = reverse("web:scenario-duplicate", args=[pools.pk])
    client.post(copy)
    client.post(copy)
    names = set(Scenario.objects.values_list("name", flat=True))
    assert names == {"Two pools", "Two pools copy 1", "Two pools copy 2"}
    client.post(reverse("web:scenario-delete", args=[pools.pk]))
    assert not Scenario.objects.filter(pk=pools.pk).exists()


def test_the_newest_comparison_of_a_scenario_has_its_figures_by_type(
    client: Client, pools: Scenario
) -> None:
    recommended = {
        "label": "Plan", "assurance": "safe", "meets_slo": False, "cost_usd": 12.5,
        "timetable": {"rows": [
                {"begins": "2024-05-18T00:00:00Z", "replicas": [1, 2]},
                {"begins": "2024-05-18T08:00:00Z", "replicas": [3, 3]},
            ]},
    }  # fmt: skip
    fields = {"scenario": pools, "kind": Run.Kind.COMPARE, "state": Run.State.COMPLETED}
    for document, result in ((DOCUMENT, {}), (f"{DOCUMENT}\n", {"recommended": recommended})):
        run = Run.objects.create(**fields, name="r", document=document, result=result)
        found = latest_comparisons([pools])[pools.pk]
        assert found.pk == run.pk and found.outdated == (document != pools.document)
        figures = found.plan, found.meets_slo, found.replicas, found.cost
        assert figures == (("Plan", False, "3 to 6", 12.5) if result else (None,) * 4)
        listing = client.get(reverse("web:scenarios"))
        assert ("missed" in text_of(listing)) == bool(result)


def test_the_list_shows_a_plan_without_simulation_until_there_is_a_comparison(
    client: Client, pools: Scenario
) -> None:
    def listing() -> str:
        return client.get(reverse("web:scenarios")).content.decode()

    fields = {"scenario": pools, "state": Run.State.COMPLETED, "name": "r", "document": DOCUMENT}
    recommended = {"label": "Plan", "policy": "lt-i", "cost_usd": 5922.0, "meets_slo": None}
    plan = Run.objects.create(**fields, kind=Run.Kind.PLAN, result={"recommended": recommended})
    planned_only = listing()
    assert "$5,922" in planned_only and reverse("web:run", args=[plan.pk]) in planned_only
    assert not latest_comparisons([pools])
    result = {"recommended": recommended | {"cost_usd": 7.0}}
    compared = Run.objects.create(**fields, kind=Run.Kind.COMPARE, result=result)
    assert reverse("web:run", args=[compared.pk]) in listing() and "$5,922" not in listing()


def test_default_test_days_give_way_to_the_rows_of_a_large_scenario(
    client: Client, planner: User
) -> None:
    tiers = "\n".join(f"  - {{name: T{i}, ttft_ms: 1000}}" for i in range(50))
    many = DOCUMENT.replace("  - {name: IW-F, ttft_ms: 1000, tbt_ms: 100}", tiers)
    scenario = scenario_create(owner=planner, document=many.replace("IW-F", "T0"))
    values = form_values(client.get(url(scenario)))
    assert (values["tiers-TOTAL_FORMS"], values["test_days-TOTAL_FORMS"]) == (["50"], ["0"])
    assert client.post(url(scenario), values | {"action": "save"}).status_code == 302
    scenario.refresh_from_db()
    assert len(parse(scenario.document).tiers) == 50 and "test_days" not in scenario.document


def test_what_the_form_cannot_hold_is_shown_as_text(client: Client, planner: User) -> None:
    tiers = "\n".join(f"  - {{name: T{i}, ttft_ms: 1000}}" for i in range(70))
    many = DOCUMENT.replace("  - {name: IW-F, ttft_ms: 1000, tbt_ms: 100}", tiers)
    scenario = scenario_create(owner=planner, document=many.replace("IW-F", "T0"))
    answer = client.get(url(scenario))
    assert answer.status_code == 200
    assert "more than the 60 rows" in text_of(answer)
    assert 'id="document"' in answer.content.decode()


def test_what_would_keep_it_from_running_is_told_on_saving(
    client: Client, pools: Scenario, week: Trace
) -> None:
    """Saved all the same: a draft may wait for its trace or its price."""
    for wrong, right, says in (
        ("trace: nope", "trace: week", "nope"),
        ("period_s: 1000", "period_s: 3600", "1000 s is not a whole multiple of the bins of 900 s"),
        ("pue: 1.2", "usd_per_gpu_hour: {A100-80GB: 2.5}", "price"),
    ):
        text = DOCUMENT.replace(right, wrong)
        for action in ("save", "run"):
            sent = {"mode": "yaml", "document": text, "action": action}
            answer = client.post(url(pools), sent, follow=True)
            page = text_of(answer)
            assert "Two pools is saved, but cannot run yet:" in page and says in page
        pools.refresh_from_db()
        assert pools.document == text
    assert not Run.objects.exists()


def test_bursty_arrivals_of_a_size_take_the_number_next_to_them(
    client: Client, pools: Scenario
) -> None:
    address, sent = reverse("web:size"), {"scenario": pools.pk, "variation": "7"}
    for burstiness, stored in (("bursty", "7"), ("poisson", "poisson"), ("trace", "trace")):
        assert client.post(address, sent | {"burstiness": burstiness}).status_code == 302
        assert Run.objects.latest("pk").options["burstiness"] == stored
    refused = client.post(address, sent | {"burstiness": "bursty", "variation": "101"})
    assert refused.status_code == 400
    assert refused.context["form"]["variation"].value() == "101"
