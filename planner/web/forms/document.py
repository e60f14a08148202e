"""Map the scenario's YAML to the fields of its form and back.

Keys that the form does not show are kept.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from pydantic import TypeAdapter, ValidationError

from planner.inputs.scenario.schema import Scenario
from planner.inputs.scenario.schema.test_days import LEVELS, TestDay, level_of
from planner.inputs.scenario.schema.test_days import USUAL as USUAL_DAYS
from planner.policies.choice import USUAL
from planner.web.forms.fields import SCALARS, tidy
from planner.web.forms.holidays import holidays_as_text as shown_holidays
from planner.web.forms.profile_choice import ProfileChoice

Row = dict[str, Any]  # a mapping of the document, or values of a form; edits by dotted path
DAY_S = 86_400

LISTS = {
    "profiles": "profiles",
    "regions": "regions",
    "tiers": "tiers",
    "sources": "traffic.sources",
    "today": "fleet.today",
    "test_days": "test_days",
}

# Rows that apply if the document lacks a list.
DEFAULT_ROWS = {"test_days": [day.model_dump(exclude_defaults=True) for day in USUAL_DAYS]}
TEST_DAY: TypeAdapter[TestDay] = TypeAdapter(TestDay)


def value_at(data: Any, dotted: str) -> Any:
    """Return the value at a dotted path, or None if the document does not have it."""
    for key in dotted.split("."):
        if not isinstance(data, Mapping):
            return None
        data = data.get(key)
    return data


def rows_of(data: Any, dotted: str) -> list[Row]:
    """Return the mappings in a list; a plain name counts as a mapping with that name.

    Other items are skipped.
    """
    items = value_at(data, dotted)
    if not isinstance(items, Sequence) or isinstance(items, str):
        return []
    rows = [{"name": item} if isinstance(item, str) else item for item in items]
    return [dict(row) for row in rows if isinstance(row, Mapping)]


def required_test_days(data: Row) -> int | None:
    """Return how many test days the document's level of assurance requires; None if not valid."""
    level = value_at(data, "assurance") or Scenario.model_fields["assurance"].default
    try:
        rows = rows_of(data, "test_days") or DEFAULT_ROWS["test_days"]
        # The rank of the lowest level that requires a day; None: no level does.
        ranks = [level_of(TEST_DAY.validate_python(row)) for row in rows]
        return sum(rank is not None and rank <= LEVELS.index(level) for rank in ranks)
    except ValueError:  # an invalid row or level; the form states it
        return None


def study_values(data: Row) -> Row:
    """Return initial values of StudyForm for the document ``data``.

    Times are text in UTC. Numbers are in the unit of their field.
    """
    values: Row = {}
    for name, scalar in SCALARS.items():
        value = value_at(data, scalar.path)
        if isinstance(value, str):
            value = value.strip()
        elif isinstance(value, datetime):
            moment = value.replace(tzinfo=value.tzinfo or UTC).astimezone(UTC)
            value = moment.isoformat().replace("+00:00", "Z")
        elif scalar.per and isinstance(value, int | float):
            value = tidy(value / scalar.per)
        values[name] = value
    values["holidays"] = shown_holidays(values["holidays"])
    # A check box represents the unlabelled row of its policy. Rows with a label are kept unchanged.
    policies = [row.get("name") for row in rows_of(data, "policies") if not row.get("label")]
    return values | {"policies": policies or list(USUAL)}


def row_values(data: Row) -> dict[str, list[Row]]:
    """Return initial values of every row form, by section.

    ``at`` is the index of the document's row from which a form row comes. A region has a form row
    per GPU type. Nested values, such as token lengths, become fields of their own.
    """
    rows_by_section: dict[str, list[Row]] = {}
    for section in LISTS:
        rows = _rows_or_default(data, section)
        rows_by_section[section] = [{**row, "at": index} for index, row in enumerate(rows)]
    rows_by_section["test_days"] = [_test_day_values(row) for row in rows_by_section["test_days"]]
    rows_by_section["profiles"] = [
        {"at": row["at"], "profile": ProfileChoice.of(row)} for row in rows_by_section["profiles"]
    ]
    regions = rows_by_section["regions"]
    rows_by_section["regions"] = [part for row in regions for part in _region_parts(row)]
    for row in rows_by_section["sources"]:
        for side in ("input", "output"):
            lengths = row.pop(f"{side}_tokens", None)
            if isinstance(lengths, Mapping):
                row[f"{side}_mean"], row[f"{side}_cv"] = lengths.get("mean"), lengths.get("cv")
        row.update(_launch_values(row.pop("launch", None)))
    return rows_by_section


def study_changes(data: Row, values: Row) -> Row:
    """Return the edits (for ``document.edit``) that give the document the ``values`` of StudyForm.

    Only values that the user changed are edited.
    """
    changes: Row = {}
    initial = study_values(data)
    for name, scalar in SCALARS.items():
        value = None if values[name] == "" else values[name]
        if value != initial[name]:
            if scalar.per and value is not None:
                value *= scalar.per  # in the unit of the document
            changes[scalar.path] = _tidy_number(value)
    if set(values["policies"]) != set(initial["policies"]):
        rows = rows_of(data, "policies")
        labelled = [row for row in rows if row.get("label")]
        unlabelled = {row.get("name"): row for row in rows if not row.get("label")}
        chosen = [unlabelled.get(name, {"name": name}) for name in values["policies"]]
        changes["policies"] = [*map(_name_or_row, chosen), *labelled]
    return changes


def row_changes(data: Row, section: str, rows: Sequence[Row]) -> Row:
    """Return the edits of ``data`` that give ``section`` the form's ``rows``.

    Keys of a row that the form does not have are kept. The edits are by path; {} without a change.
    """
    path = LISTS[section]
    old_rows = _rows_or_default(data, section)
    if section == "regions":  # form rows with one name form one region
        regions = dict.fromkeys(row["name"] for row in rows)
        new_rows = [
            _region(old_rows, region, [row for row in rows if row["name"] == region])
            for region in regions
        ]
    else:
        builders = {"profiles": _profile, "sources": _source, "test_days": _test_day}
        build = builders.get(section, _plain_row)
        new_rows = [build(_row_at(old_rows, row.get("at")), row) for row in rows]
    # Without rows in the document, the form shows defaults. Removing them all is no change.
    stays_empty = not new_rows and not value_at(data, path)
    changes: Row = {}
    if new_rows != old_rows and not stays_empty:
        changes[path] = new_rows or None
    if section == "profiles":  # the scenario's models are those of its profiles
        old_models = {row.get("name"): row for row in rows_of(data, "models")}
        names = list(dict.fromkeys(row["model"] for row in new_rows))
        if set(names) != set(old_models):
            changes["models"] = [
                _name_or_row(old_models.get(name, {"name": name})) for name in names
            ]
    return changes


def _rows_or_default(data: Row, section: str) -> list[Row]:
    """Return the rows of a section, or its default rows if the document lacks the list."""
    if value_at(data, LISTS[section]) is None:
        return [dict(row) for row in DEFAULT_ROWS.get(section, [])]
    return rows_of(data, LISTS[section])


def with_moved_traffic(data: Row, changes: Row) -> Row:
    """Return ``changes`` with more edits if they replace one model by another.

    The traffic and today's fleet of the old model then move to the new one, so that a change of
    model is one edit.
    """
    before = {row.get("name") for row in rows_of(data, "models")}
    models = changes.get("models") or before
    after = {row["name"] if isinstance(row, dict) else row for row in models}
    removed, added = before - after, after - before
    if len(removed) != 1 or len(added) != 1:
        return changes
    (old_model,), (new_model,) = removed, added
    moved: Row = {}
    for path in (LISTS["sources"], LISTS["today"]):
        rows = changes.get(path) or rows_of(data, path)
        if any(row.get("model") == old_model for row in rows):
            moved[path] = [
                row | {"model": new_model} if row.get("model") == old_model else row for row in rows
            ]
    return changes | moved


def _name_or_row(row: Row) -> Any:
    """Return a row that has only a name as that name, as people write it, else the row."""
    return row["name"] if set(row) == {"name"} else row


def _update_row(old: Row, values: Row) -> Row:
    """Return ``old`` with the values of a form.

    An empty value removes its key. If the key was empty in ``old``, it stays.
    """
    new = dict(old)
    for key, value in values.items():
        if not _is_empty(value):
            new[key] = value
        elif not _is_empty(old.get(key)):
            del new[key]
    return new


def _is_empty(value: Any) -> bool:
    """Return whether a value is None, False, "" or {}, which the document leaves out; 0 is not."""
    return value is None or value is False or value in ("", {})


def _plain_row(old: Row, row: Row) -> Row:
    """Return the document's row ``old`` with the values of its form ``row``, by the same keys."""
    return _update_row(old, _document_values(row))


def _document_values(row: Row) -> Row:
    """Return the values of a form row without those about the form itself."""
    return {key: _tidy_number(value) for key, value in row.items() if key not in ("at", "DELETE")}


def _tidy_number(value: Any) -> Any:
    """Return a whole number as int, since forms return 1000 as 1000.0; other values unchanged."""
    return tidy(value) if isinstance(value, float) else value


def _profile(old: Row, row: Row) -> Row:
    """Return a profile of the document: the old row, unless the form has another choice."""
    choice: ProfileChoice = row["profile"]
    return old if old and ProfileChoice.of(old) == choice else choice.row()


def _source(old: Row, row: Row) -> Row:
    """Return a traffic source of the document with the values of its form row."""
    values = {
        key: _tidy_number(row[key])
        for key in ("trace", "series", "model", "regions", "tiers", "scale", "cached_share")
    }
    values["launch"] = _launch(old.get("launch"), row)
    for side in ("input", "output"):
        lengths = {"mean": row[f"{side}_mean"], "cv": row[f"{side}_cv"]}
        values[f"{side}_tokens"] = {
            name: tidy(tokens) for name, tokens in lengths.items() if tokens is not None
        }
    return _update_row(old, values)


def _test_day_values(row: Row) -> Row:
    """Return a test day as the form shows it: with the defaults of its kind."""
    index = row.pop("at")
    with suppress(ValidationError):  # the form shows what is wrong once it is saved
        row = TEST_DAY.validate_python(row).model_dump()
    choice = ""  # the level of the day decides
    if row.get("required") is not None:
        choice = "yes" if row["required"] else "no"
    return row | {"at": index, "required": choice}


def _test_day(old: Row, row: Row) -> Row:
    """Return a test day of the document with its form values, without the defaults of its kind.

    If the kind was changed, values that the new kind does not have are dropped. If no value was
    changed, the day is returned as it was written.
    """
    kind = row["kind"]
    defaults = TEST_DAY.validate_python({"kind": kind}).model_dump()
    is_other_kind = old.get("kind", kind) != kind
    values = _document_values(row)
    not_in_form = {key: value for key, value in old.items() if key not in values}
    new = {"kind": kind}
    for key, value in (not_in_form | values).items():
        is_of_old_kind = is_other_kind and key not in defaults
        if not is_of_old_kind and value not in (None, "") and value != defaults.get(key):
            new[key] = value
    with suppress(ValidationError):
        if TEST_DAY.validate_python(old) == TEST_DAY.validate_python(new):
            return old
    return new


def _launch(old: Any, row: Row) -> Row:
    """Return a source's launch with the form's values; keys that the form lacks are kept.

    A launch is traffic without a trace. Values that the user did not change stay as written.
    """
    initial, new = _launch_values(old), _mapping(old)
    if row["launch_rps"] != initial["launch_rps"]:
        new.pop("requests_per_day", None)  # the same rate in another unit
        new["rps"] = _tidy_number(row["launch_rps"])
    day = row["launch_day"] or None
    if day != initial["launch_day"]:
        new["day"] = day
    return {key: value for key, value in new.items() if value is not None}


def _launch_values(launch: Any) -> Row:
    """Return the launch fields that the form shows: requests/s, and a daily pattern's name."""
    values = _mapping(launch)
    rps, requests_per_day, day = map(values.get, ("rps", "requests_per_day", "day"))
    if rps is None and isinstance(requests_per_day, int | float):
        rps = tidy(requests_per_day / DAY_S)
    return {"launch_rps": rps, "launch_day": day if isinstance(day, str) else None}


def _region_parts(row: Row) -> list[Row]:
    """Return one form row per GPU type of a region; a region without GPU types has one row."""
    shared = {"at": row["at"], "name": row.get("name"), "like": row.get("like")}
    shared["site_kw"] = value_at(row, "power.site_kw")
    prices = _mapping(row.get("usd_per_gpu_hour"))
    parts = []
    for gpu, count in _mapping(row.get("capacity")).items():
        price = prices.get(gpu)
        if isinstance(price, list):  # prices by hour, which have no field in the form
            price = None
        parts.append({**shared, "gpu": gpu, "capacity": count, "usd_per_gpu_hour": price})
    return parts or [shared]


def _mapping(value: Any) -> Row:
    """Return a mapping of the document as a dict; {} for another value, which is a mistake."""
    return dict(value) if isinstance(value, Mapping) else {}


def _row_at(rows: Sequence[Row], index: int | None) -> Row:
    """Return the document's row with this index, or an empty row for a new one (None)."""
    return rows[index] if index is not None and index < len(rows) else {}


def _region(old_rows: Sequence[Row], name: str, parts: Sequence[Row]) -> Row:
    """Return a region of the document from its form rows ``parts``, one per GPU type.

    Other keys of the region stay as they are in ``old_rows``.
    """
    # The first row with a value decides on the values that all rows of a region share.
    index = next((row["at"] for row in parts if row.get("at") is not None), None)
    like = next((row["like"] for row in parts if row["like"]), None)
    site_kw = next((row["site_kw"] for row in parts if row["site_kw"]), None)
    old = _row_at(old_rows, index)
    old_prices = _mapping(old.get("usd_per_gpu_hour"))
    prices: Row = {}
    for row in parts:
        gpu, usd = row["gpu"], row["usd_per_gpu_hour"]
        if usd is not None:
            prices[gpu] = tidy(usd)
        elif isinstance(old_prices.get(gpu), list):  # prices by hour have no field in the form
            prices[gpu] = old_prices[gpu]
    return _update_row(
        old,
        {
            "name": name,
            "like": like,
            "power": _update_row(_mapping(old.get("power")), {"site_kw": site_kw}),
            "capacity": {row["gpu"]: row["capacity"] for row in parts},
            "usd_per_gpu_hour": prices,
        },
    )
