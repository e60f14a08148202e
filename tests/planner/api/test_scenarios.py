"""Scenarios over the API: JSON and YAML, versions, and what is refused."""

import json

import pytest

from planner.models import Scenario
from tests.planner.samples import DOCUMENT

URL = "/api/v1/scenarios/"
YAML = "application/yaml"


def named(name):
    return DOCUMENT.replace("name: Chat", f"name: {name}")


def test_a_scenario_is_kept_from_json_and_from_its_file(api):
    first = api.post(URL, {"document": DOCUMENT}, format="json")
    second = api.post(URL, named("Other"), content_type=YAML)
    third = api.post(URL, named("Third"), content_type="text/yaml")
    assert [r.status_code for r in (first, second, third)] == [201, 201, 201]
    body = first.json()
    assert body["document"] == DOCUMENT
    assert body["version"] == 1
    assert body["owner"] == "pia"
    assert body["spec"]["horizon"]["period_s"] == 3600
    assert api.get(first["Location"]).json() == body
    assert first["ETag"] == api.get(first["Location"])["ETag"]


def test_the_file_comes_back_byte_by_byte(api, scenario):
    for accept in (YAML, "text/yaml"):
        answer = api.get(f"{URL}{scenario.pk}/", headers={"Accept": accept})
        assert answer["Content-Type"].startswith(accept)
        assert answer.content.decode() == DOCUMENT
    assert api.get(f"{URL}Chat/?format=yaml").content.decode() == DOCUMENT


@pytest.mark.parametrize(
    ("body", "content_type", "status"),
    [
        ("{", "application/json", 400),
        ("[1]", "application/json", 400),
        ("null", "application/json", 400),
        ("{}", "application/json", 400),
        (json.dumps({"document": 5.5}), "application/json", 422),
        (json.dumps({"document": "a\x00b"}), "application/json", 400),
        (json.dumps({"document": DOCUMENT, "owner": 1}), "application/json", 400),
        (b"\xff\xfe", YAML, 400),
        ("", YAML, 400),
        ("a: [", YAML, 422),
        ("just words", YAML, 422),
        ("[" * 1000, YAML, 422),
        ("a: &a [*a]", YAML, 422),
        ("\x00", YAML, 400),
        ("x", "text/plain", 415),
    ],
)
def test_malformed_bodies_are_refused_in_words(api, body, content_type, status):
    answer = api.post(URL, body, content_type=content_type)
    assert answer.status_code == status
    assert answer["Content-Type"] == "application/problem+json"
    assert answer.json()["detail"]
    assert not Scenario.objects.exists()


def test_a_body_too_large_for_memory_is_refused(api, settings):
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 1000
    answer = api.post(URL, "#" * 1001, content_type=YAML)
    assert answer.status_code == 413


def test_lists_are_short_filtered_ordered_and_paged(
    api, planner, scenario, django_assert_num_queries
):
    for i in range(3):
        api.post(URL, named(f"Chat {i}"), content_type=YAML)
    api.post(URL, named("Batch"), content_type=YAML)
    with django_assert_num_queries(4):  # token, where they belong, count, rows
        listed = api.get(f"{URL}?name=chat&ordering=name&page_size=2").json()
    assert listed["count"] == 4
    assert [item["name"] for item in listed["results"]] == ["Chat", "Chat 0"]
    assert "document" not in listed["results"][0]
    assert [s["name"] for s in api.get(listed["next"]).json()["results"]] == ["Chat 1", "Chat 2"]


@pytest.mark.parametrize("which", ["none", "99999", "²", "9" * 400, "%00", "a%2Fb"])
def test_a_scenario_that_is_not_there_is_404(api, scenario, which):
    answer = api.get(f"{URL}{which}/")
    assert answer.status_code == 404
    assert answer.json()["title"] == "Not found"


def test_an_etag_saves_the_body_until_the_scenario_changes(api, scenario):
    url = f"{URL}{scenario.pk}/"
    tag = api.get(url)["ETag"]
    same = api.get(url, headers={"If-None-Match": tag})
    assert same.status_code == 304
    assert not same.content
    other_form = api.get(url, headers={"If-None-Match": tag, "Accept": YAML})
    assert other_form.status_code == 200
    api.put(url, DOCUMENT + "# more\n", content_type=YAML)
    assert api.get(url, headers={"If-None-Match": tag}).status_code == 200


@pytest.mark.parametrize("accept", ["application/json", YAML])
def test_a_change_is_saved_only_over_the_state_it_was_made_from(api, scenario, accept):
    url = f"{URL}{scenario.pk}/"
    tag = api.get(url, headers={"Accept": accept})["ETag"]
    saved = api.put(url, DOCUMENT + "# one\n", content_type=YAML, headers={"If-Match": tag})
    assert saved.status_code == 200
    assert saved.json()["version"] == 2
    late = api.put(url, DOCUMENT + "# two\n", content_type=YAML, headers={"If-Match": tag})
    assert late.status_code == 412
    assert late.json()["title"] == "Changed meanwhile"
    scenario.refresh_from_db()
    assert scenario.document == DOCUMENT + "# one\n"
    next_ = api.put(
        url, DOCUMENT + "# two\n", content_type=YAML, headers={"If-Match": saved["ETag"]}
    )
    assert next_.status_code == 200


@pytest.mark.parametrize("tag", ['"nonsense"', '"999999999-1-json"', 'W/"1-1"', '"1-²"', '""'])
def test_an_if_match_that_never_was_its_etag_saves_nothing(api, scenario, tag):
    answer = api.put(
        f"{URL}{scenario.pk}/", DOCUMENT + "# x\n", content_type=YAML, headers={"If-Match": tag}
    )
    assert answer.status_code == 412


def test_values_change_and_comments_stay(api, scenario):
    url = f"{URL}{scenario.pk}/"
    changes = {"horizon.period_s": 900, "seed": None}
    answer = api.patch(url, {"changes": changes}, format="json")
    assert answer.status_code == 200
    document = answer.json()["document"]
    assert "period_s: 900   # an hour" in document
    assert "# Kept for the meeting in June." in document
    assert "seed" not in document
    merged = api.patch(url, DOCUMENT, content_type=YAML)
    assert merged.json()["document"] == DOCUMENT


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"changes": {}}, 400),
        ({"changes": {"x": 1}, "document": DOCUMENT}, 400),
        ({"changes": ["x"]}, 400),
        ({"changes": {"horizon.period_s": -5}}, 422),
        ({"changes": {"horizn.period_s": 5}}, 422),
        ({"changes": {"models.0.name": "x"}}, 422),
        ({"changes": {"": 1}}, 422),
        ({"changes": {"name.x": 1}}, 422),
    ],
)
def test_changes_that_make_no_scenario_are_refused(api, scenario, body, status):
    assert api.patch(f"{URL}{scenario.pk}/", body, format="json").status_code == status
    scenario.refresh_from_db()
    assert scenario.document == DOCUMENT


def test_a_scenario_is_removed_and_its_runs_keep_their_copy(api, scenario, completed):
    assert api.delete(f"{URL}{scenario.pk}/").status_code == 204
    completed.refresh_from_db()
    assert completed.scenario is None
    assert completed.document == DOCUMENT
    assert api.delete(f"{URL}{scenario.pk}/").status_code == 404


def test_a_scenario_that_is_no_longer_valid_can_still_be_read(api, scenario):
    Scenario.objects.filter(pk=scenario.pk).update(document=DOCUMENT.replace("seed", "sed"))
    body = api.get(f"{URL}{scenario.pk}/").json()
    assert body["spec"] is None
    assert "line 4" in body["problem"]
