"""The scenario form says what the document says, and changes only what the user changed."""

from typing import Any

import pytest
from django import forms
from django.core.exceptions import ValidationError
from django.forms.renderers import DjangoTemplates
from django.test.html import parse_html
from hypothesis import example, given
from hypothesis import strategies as st

from planner.inputs.scenario.document import edit, outline, parse
from planner.inputs.scenario.schema.test_days import USUAL as USUAL_DAYS
from planner.web.forms.document import (
    row_changes,
    row_values,
    study_changes,
    study_values,
    value_at,
    with_moved_traffic,
)
from planner.web.forms.fields import SCALARS, tidy
from planner.web.forms.holidays import countries
from planner.web.forms.profile_choice import ProfileChoice, ProfileField
from planner.web.forms.scenario import SharesField
from planner.web.forms.widgets import FormRenderer
from tests.planner.web.study import DOCUMENT
from tests.unicode_blocks import ALPHABET

EMPTY_SOURCE = dict.fromkeys(
    ("series", "scale", "input_mean", "input_cv", "output_mean", "output_cv", "launch_rps",
     "launch_day", "cached_share")
)  # fmt: skip


def cleaned(section: str, row: dict[str, Any]) -> dict[str, Any]:
    """A row as its form cleans it: every field there, None or "" where nothing was given."""
    fields = {
        "regions": ("name", "gpu", "capacity", "usd_per_gpu_hour", "like", "site_kw"),
        "tiers": ("name", "ttft_ms", "tbt_ms", "e2e_ms", "percentile", "utility", "deferrable"),
        "sources": ("trace", "model", "regions", "tiers", *EMPTY_SOURCE),
    }
    return dict.fromkeys(fields.get(section, ())) | row


def rows(data: dict[str, Any], section: str) -> list[dict[str, Any]]:
    return [cleaned(section, row) for row in row_values(data)[section]]


def test_one_changed_number_leaves_every_other_line() -> None:
    data = outline(DOCUMENT)
    changes = study_changes(data, study_values(data) | {"period_min": 30})
    before, after = DOCUMENT.splitlines(), edit(DOCUMENT, changes).splitlines()
    assert changes == {"horizon.period_s": 1800}
    assert [line for line in after if line not in before] == ["  period_s: 1800 # an hour"]


def test_a_region_keeps_the_facts_the_form_does_not_show() -> None:
    data = outline(DOCUMENT)
    changed = [{**rows(data, "regions")[0], "name": "east", "capacity": 8}]
    extra = cleaned("regions", {"name": "west", "gpu": "A100-80GB", "capacity": 4, "at": None})
    other = {**changed[0], "gpu": "H100-SXM", "capacity": 2, "usd_per_gpu_hour": None, "at": None}
    (new,) = row_changes(data, "regions", [*changed, extra, other]).values()
    assert new == [
        {
            "name": "east",
            "capacity": {"A100-80GB": 8, "H100-SXM": 2},
            "usd_per_gpu_hour": {"A100-80GB": 2.5},
            "carbon_g_per_kwh": 300,
        },
        {"name": "west", "capacity": {"A100-80GB": 4}},
    ]


def test_prices_by_hour_stay_until_one_price_replaces_them() -> None:
    hourly = [1.0, 2.0] * 12
    data = outline(DOCUMENT.replace("A100-80GB: 2.5", f"A100-80GB: {hourly}"))
    (row,) = rows(data, "regions")
    assert row["usd_per_gpu_hour"] is None
    (kept,) = row_changes(data, "regions", [{**row, "capacity": 8}])["regions"]
    assert kept["usd_per_gpu_hour"] == {"A100-80GB": hourly}
    (flat,) = row_changes(data, "regions", [{**row, "usd_per_gpu_hour": 3.0}])["regions"]
    assert flat["usd_per_gpu_hour"] == {"A100-80GB": 3.0}


def test_a_power_limit_of_a_region_and_the_utility_of_a_tier_have_fields() -> None:
    data = outline(DOCUMENT)
    limited = [{**row, "site_kw": 40.0} for row in rows(data, "regions")]
    worth = [{**row, "utility": 2.0} for row in rows(data, "tiers")]
    changes = row_changes(data, "regions", limited) | row_changes(data, "tiers", worth)
    document = edit(DOCUMENT, changes)
    new = parse(document)
    assert {region.power.site_kw for region in new.regions if region.power} == {40.0}
    assert {tier.utility for tier in new.tiers} == {2.0}
    again = outline(document)
    assert {row["site_kw"] for row in rows(again, "regions")} == {40.0}
    without = [{**row, "site_kw": None} for row in rows(again, "regions")]
    assert all("power" not in row for row in row_changes(again, "regions", without)["regions"])


def test_models_follow_the_profiles_and_keep_what_they_say() -> None:
    own_models = (
        "models:\n  - {name: mine, weight_gb: 16, kv_bytes_per_token: 1000, max_context: 4096}"
    )
    text = DOCUMENT.replace("models: [llama-3.1-8b]", own_models).replace(
        "model: llama-3.1-8b, gpu", "model: mine, gpu"
    )
    data = outline(text)
    added = [
        *rows(data, "profiles"),
        {"at": None, "profile": ProfileChoice("llama-2-70b", "H100-SXM", 8)},
    ]
    changes = row_changes(data, "profiles", added)
    assert changes["profiles"][1] == {"model": "llama-2-70b", "gpu": "H100-SXM", "tp": 8}
    assert [value_at(model, "name") or model for model in changes["models"]] == [
        "mine",
        "llama-2-70b",
    ]
    assert changes["models"][0]["max_context"] == 4096


def test_traffic_and_fleet_follow_a_model_that_takes_the_place_of_another() -> None:
    """A change of model took three edits, with errors that appeared one by one."""
    today = "fleet: {today: [{model: llama-3.1-8b, region: us-east, gpu: A100-80GB, replicas: 2}]}"
    text = f"{DOCUMENT}{today}\n"
    data = outline(text)
    instead = [{"at": 0, "profile": ProfileChoice("llama-3.2-3b", "A100-80GB", 2)}]
    changed = parse(edit(text, with_moved_traffic(data, row_changes(data, "profiles", instead))))
    assert [model.name for model in changed.models] == ["llama-3.2-3b"]
    assert changed.traffic.sources[0].model == changed.fleet.today[0].model == "llama-3.2-3b"
    # A second one beside it takes nothing over, and nothing moves where no model did.
    more = row_changes(data, "profiles", [*rows(data, "profiles"), instead[0] | {"at": None}])
    assert with_moved_traffic(data, more) == more and with_moved_traffic(data, {"seed": 2}) == {
        "seed": 2
    }


def test_a_launch_keeps_what_the_form_does_not_show() -> None:
    launch = {"requests_per_day": 86_400, "weekend": 0.5, "begins": "2027-01-04"}
    lengths = {"input_tokens": {"mean": 100}, "output_tokens": {"mean": 10}}
    data = outline(DOCUMENT) | {
        "traffic": {"sources": [{"launch": launch, "model": "m"} | lengths]}
    }
    row = cleaned("sources", row_values(data)["sources"][0])
    assert (row["launch_rps"], row["launch_day"]) == (1, None)
    assert row_changes(data, "sources", [row]) == {}
    changed = row_changes(data, "sources", [row | {"launch_rps": 2.0, "launch_day": "evening"}])
    kept = {"weekend": 0.5, "begins": "2027-01-04", "rps": 2, "day": "evening"}
    assert changed["traffic.sources"][0]["launch"] == kept


LIST = """\
version: 1
tiers:
  # Interactive ones first.
  - {name: IW-F, ttft_ms: 1000} # fast
  - {name: IW-N, ttft_ms: 60000} # a minute
  - &last {name: NIW, e2e_ms: 1} # overnight
other: *last
"""


@given(st.lists(st.integers(0, 2), unique=True))
def test_rows_that_stay_keep_their_comments_and_layout(keep: list[int]) -> None:
    items = outline(LIST)["tiers"]
    text = edit(LIST, {"tiers": [items[i] for i in keep]})
    assert outline(text) == outline(LIST) | {"tiers": [items[i] for i in keep]}
    # Without the row that another one refers to, meaning stays and comments do not.
    if keep == sorted(keep) and 2 in keep:
        rows = LIST.splitlines()[3:6]
        assert [row in text for row in rows[:2]] == [i in keep for i in range(2)]


def test_a_row_that_changes_keeps_the_comments_of_the_others() -> None:
    items = outline(LIST)["tiers"]
    new = [items[0], {"name": "IW-N", "ttft_ms": 9}, items[2], {"name": "x", "e2e_ms": 2}]
    text = edit(LIST, {"tiers": new})
    assert "- {name: IW-F, ttft_ms: 1000} # fast" in text
    assert "- {name: IW-N, ttft_ms: 9}     # a minute" in text
    assert "# Interactive ones first." in text
    assert "- {name: x, e2e_ms: 2}\n" in text
    assert outline(text)["tiers"] == new


def test_a_row_that_others_refer_to_is_not_changed_behind_them() -> None:
    items = outline(LIST)["tiers"]
    text = edit(LIST, {"tiers": [*items[:2], {"name": "NIW", "e2e_ms": 5}]})
    assert outline(text)["other"] == {"name": "NIW", "e2e_ms": 1}


def test_layouts_that_the_yaml_library_garbles_lose_comments_rather_than_meaning() -> None:
    mixed = "version: 1\ntiers:\n  # First.\n  - {name: a} # fast\n  - name: b\n    ttft_ms: 6\n"
    text = edit(mixed, {"seed": 3})
    assert outline(text) == outline(mixed) | {"seed": 3}


def test_a_count_of_none_is_kept() -> None:
    today = {"model": "m", "region": "r", "gpu": "g", "replicas": 0, "minimum": None, "at": None}
    (new,) = row_changes(outline(DOCUMENT), "today", [today]).values()
    assert new == [{"model": "m", "region": "r", "gpu": "g", "replicas": 0}]


def test_a_document_of_wrong_types_still_fills_the_form() -> None:
    data = outline("version: 1\nregions: none\ntiers: {a: 1}\ntraffic: [1, 2]\nhorizon: soon\n")
    assert study_values(data)["period_min"] is None
    rows = row_values(data)
    assert all(not values for name, values in rows.items() if name != "test_days")
    assert [row["kind"] for row in rows["test_days"]] == [day.kind for day in USUAL_DAYS]


def posted_days(data: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of test days as the form posts them."""
    fields = ("at", "kind", "name", "weight", "times", "hours", "windows", "error")
    required = {"yes": True, "no": False, "": None}
    return [
        {name: row.get(name) for name in fields} | {"required": required[row["required"]]}
        for row in row_values(data)["test_days"]
    ]


@pytest.mark.parametrize(
    "days",
    [
        "",
        "test_days:\n  - {kind: past, windows: 3, weight: 1}\n  - {kind: drawn, paths: 7}\n",
        "test_days:\n  - {kind: crowd, times: 5, required: false, name: Launch}\n",
    ],
)
def test_test_days_that_are_not_edited_stay_as_written(days: str) -> None:
    data = outline("version: 1\n" + days)
    assert row_changes(data, "test_days", posted_days(data)) == {}


def test_an_edited_test_day_writes_the_list_without_defaults() -> None:
    data = outline("version: 1\n")
    days = posted_days(data)
    crowd = next(day for day in days if day["kind"] == "crowd")
    crowd["times"], crowd["required"] = 5.0, False
    ((path, new),) = row_changes(data, "test_days", days).items()
    assert path == "test_days" and len(new) == len(USUAL_DAYS)
    assert {"kind": "crowd", "times": 5, "required": False} in new and {"kind": "past"} in new
    crowd["kind"] = "past"  # which has no such value
    (new,) = row_changes(data, "test_days", days).values()
    assert {"kind": "past", "weight": 0, "required": False} in new


@pytest.mark.parametrize(
    ("written", "shares"),
    [
        ("us-east 60 %, us-west 40%", {"us-east": 0.6, "us-west": 0.4}),
        ("a=0.25, b: 0.75", {"a": 0.25, "b": 0.75}),
        ("everything", {"everything": 1.0}),
        ("North America 100%", {"North America": 1.0}),
        ("zone 1, zone 2 0.5", {"zone 1": 1.0, "zone 2": 0.5}),
        ("zone 1 100 %", {"zone 1": 1.0}),
        ("", {}),
        ("a 33.3333 %", {"a": 0.333333}),
    ],
)
def test_shares_are_read_as_people_write_them(written: str, shares: dict[str, float]) -> None:
    field = SharesField(required=False)
    assert field.clean(written) == shares
    assert field.clean(field.prepare_value(shares)) == pytest.approx(shares)


@given(st.floats(0.5, 86_400))
def test_minutes_come_back_as_the_seconds_they_were(seconds: float) -> None:
    assert tidy(tidy(seconds / 60) * 60) == pytest.approx(seconds, abs=1e-4)


def test_shares_longer_than_any_real_ones_are_refused() -> None:
    with pytest.raises(ValidationError, match="Edit longer ones as YAML"):
        SharesField().clean("a =" + "1" * 100_000 + "x")


def test_prefill_and_decode_profiles_are_told_apart() -> None:
    text = """\
version: 1
models: [m]
profiles:
  - {model: m, gpu: G, tp: 4, kind: roofline, role: prefill} # first
  - {model: m, gpu: G, tp: 4, kind: roofline, role: decode}
"""
    data = outline(text)
    shown = rows(data, "profiles")
    assert [row["profile"].role for row in shown] == ["prefill", "decode"]
    assert not row_changes(data, "profiles", shown)
    added = {"at": None, "profile": ProfileChoice("m", "H", 8, role="decode")}
    changes = row_changes(data, "profiles", [*shown, added])
    assert changes["profiles"][2] == {"model": "m", "gpu": "H", "tp": 8, "role": "decode"}
    assert changes["profiles"][:2] == data["profiles"]


NAMES = st.text(st.sampled_from(ALPHABET), min_size=1, max_size=9).filter(str.strip)


@given(
    st.builds(
        ProfileChoice,
        model=NAMES,
        gpu=NAMES,
        tp=st.integers(1, 64),
        name=NAMES,
        version=st.none() | st.integers(1, 99),
        role=st.sampled_from(["", "prefill", "decode"]),
    )
)
@example(ProfileChoice("m", "G", 4, role="prefill"))
@example(ProfileChoice("a/b: c&d=|", "H100 SXM", 8, "mine & yours", 3))
def test_a_choice_of_a_profile_comes_back_as_it_went(choice: ProfileChoice) -> None:
    field = ProfileField()
    assert field.clean(field.prepare_value(choice)) == choice
    assert ProfileChoice.of(choice.row()) == choice


@pytest.mark.parametrize(
    "text",
    ["m|G|4", "model=m", "model=m&gpu=G&tp=x", "model=m&gpu=G&role=both", "model=m&gpu=G&a=1"],
)
def test_a_choice_that_no_list_has_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match="Choose one of the list"):
        ProfileField().clean(text)


def test_every_scalar_of_the_form_has_its_kind_and_limits_from_the_schema() -> None:
    fields = {name: scalar.field() for name, scalar in SCALARS.items()}
    epsilon, period = fields["epsilon"], fields["period_min"]
    assert (epsilon.min_value, epsilon.max_value) == (0, 1)  # type: ignore[attr-defined]
    assert period.max_value == 366 * 1440  # type: ignore[attr-defined]
    assert fields["startup_min"].widget.attrs["placeholder"] == "10"
    assert [value for value, _ in fields["solver"].choices] == ["", "highs", "cbc"]  # type: ignore[attr-defined]
    quantile = fields["quantile"]
    assert [quantile.clean(text) for text in ("", "Mean", "0.9")] == ["", "mean", 0.9]
    for wrong in ("0.99", "median", "nan"):
        with pytest.raises(forms.ValidationError, match=r"0\.05 to 0\.95, mean"):
            quantile.clean(wrong)


def test_holidays_come_back_as_they_were_written_and_unknown_ones_are_refused() -> None:
    data = outline(edit(DOCUMENT, {"forecast.holidays": ["DE-BY", "2024-12-24"]}))
    values = study_values(data)
    field = SCALARS["holidays"].field()
    written = field.prepare_value(values["holidays"])
    assert written == "DE-BY, 2024-12-24"
    assert study_changes(data, values | {"holidays": field.clean(written)}) == {}
    more = study_changes(data, values | {"holidays": field.clean(f"{written}, us, US")})
    assert more == {"forecast.holidays": ["DE-BY", "2024-12-24", "US"]}
    assert parse(edit(DOCUMENT, more)).forecast.holidays == ("DE-BY", "2024-12-24", "US")
    gone = study_changes(data, values | {"holidays": field.clean(" ")})
    assert gone == {"forecast.holidays": None}
    for wrong in ("Christmas", "2024-13-01", "US-XX", "42"):
        with pytest.raises(forms.ValidationError, match="a country's code, such as US or DE-BY"):
            field.clean(f"US, {wrong}")
    assert ("US", "United States") in countries() and ("DE", "Germany") in countries()


HOSTILE = '<b a="1">&\''
CHOICES = [("", "none"), (HOSTILE, HOSTILE), ("group <", [("1", "one"), ("2", "two")])]


@pytest.mark.parametrize("value", [None, "", 0, 1.5, True, HOSTILE, "1"])
@pytest.mark.parametrize(
    "widget",
    [
        forms.TextInput({"class": HOSTILE, "required": True, "disabled": False}),
        forms.NumberInput({"step": "any", "placeholder": "all"}),
        forms.PasswordInput(),
        forms.HiddenInput(),
        forms.CheckboxInput(),
        forms.DateTimeInput(),
        forms.Select(choices=CHOICES),
        forms.SelectMultiple(choices=CHOICES),
        forms.CheckboxSelectMultiple(choices=CHOICES),
        forms.RadioSelect(choices=CHOICES),
        forms.ClearableFileInput(),
        forms.Textarea(),
    ],
    ids=lambda widget: type(widget).__name__,
)
def test_elements_are_those_of_djangos_templates(widget: forms.Widget, value: Any) -> None:
    attrs = {"id": "one", "aria-describedby": HOSTILE}
    drawn, templated = (
        widget.render("name", value, attrs, renderer)
        for renderer in (FormRenderer(), DjangoTemplates())
    )
    assert parse_html(drawn) == parse_html(templated)
    for part in widget.subwidgets("name", value, attrs):
        context = {"widget": {**part, "wrap_label": False}}
        drawn, templated = (
            renderer.render(part["template_name"], context)
            for renderer in (FormRenderer(), DjangoTemplates())
        )
        assert parse_html(drawn) == parse_html(templated)
