"""Between the scenario's YAML and the fields of its form; keys the form does not show are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

Row = dict[str, Any]

# Field of the form, where it stands in the document, and the document's units per form unit.
SCALARS: tuple[tuple[str, str, float | None], ...] = (
    ("name", "name", None),
    ("description", "description", None),
    ("seed", "seed", None),
    ("start", "horizon.start", None),
    ("duration_h", "horizon.duration_s", 3600),
    ("period_min", "horizon.period_s", 60),
    ("lead_min", "horizon.lead_s", 60),
    ("bin_s", "traffic.bin_s", 1),
    ("startup_min", "fleet.startup_s", 60),
    ("minimum", "fleet.minimum", None),
    ("method", "forecast.method", None),
    ("quantile", "forecast.quantile", None),
    ("epsilon", "objective.epsilon", None),
    ("solver", "objective.solver", None),
    ("time_limit_s", "objective.time_limit_s", None),
    ("baseline", "objective.baseline", None),
    ("minimise", "objective.minimise", None),
    ("periods", "objective.periods", None),
    ("gap", "objective.gap", None),
    ("lend_share", "objective.lend_share", None),
    ("limited", "objective.limited", None),
    ("usd_per_hour", "objective.limits.usd_per_hour", None),
    ("carbon_kg_per_hour", "objective.limits.carbon_kg_per_hour", None),
    ("changes_per_period", "objective.limits.changes_per_period", None),
    ("limit_usd", "objective.limits.usd", None),
    ("limit_carbon_kg", "objective.limits.carbon_kg", None),
    ("limit_changes", "objective.limits.changes", None),
)
LISTS = {
    "profiles": "profiles",
    "regions": "regions",
    "tiers": "tiers",
    "sources": "traffic.sources",
    "today": "fleet.today",
}
ROLE, APART = "role:", ("prefill", "decode")
DEFAULT_POLICIES = ("flat-peak", "flat-min", "reactive", "lt-i")


def look(data: Any, dotted: str) -> Any:
    """The value at a dotted path, None where the document has none."""
    for key in dotted.split("."):
        if not isinstance(data, Mapping):
            return None
        data = data.get(key)
    return data


def rows_of(data: Any, dotted: str) -> list[Row]:
    """A list of mappings, names alone being short for a mapping; anything else is passed over."""
    found = look(data, dotted)
    if not isinstance(found, Sequence) or isinstance(found, str):
        return []
    rows = ({"name": row} if isinstance(row, str) else row for row in found)
    return [dict(row) for row in rows if isinstance(row, Mapping)]


def study_values(data: Row) -> Row:
    """Values of StudyForm for the document ``data``."""
    values: Row = {}
    for field, dotted, per_unit in SCALARS:
        value = look(data, dotted)
        if isinstance(value, str):
            value = value.strip()
        if isinstance(value, datetime):
            value = (value.replace(tzinfo=value.tzinfo or UTC)).astimezone(UTC)
            value = value.isoformat().replace("+00:00", "Z")
        if per_unit and isinstance(value, int | float):
            value = tidy(value / per_unit)
        values[field] = value
    # Boxes are for the one of each name that has no label; rows with a label are kept as they are.
    policies = [row.get("name") for row in rows_of(data, "policies") if not row.get("label")]
    return values | {"policies": policies or list(DEFAULT_POLICIES)}


def row_values(data: Row) -> dict[str, list[Row]]:
    """Values of every row form, by section."""
    plain = {
        section: [{**row, "at": i} for i, row in enumerate(rows_of(data, dotted))]
        for section, dotted in LISTS.items()
    }
    plain["profiles"] = [
        {"at": row["at"], "profile": profile_key(row)} for row in plain["profiles"]
    ]
    plain["regions"] = [part for row in plain["regions"] for part in _region_parts(row)]
    for row in plain["sources"]:
        for side in ("input", "output"):
            lengths = row.pop(f"{side}_tokens", None)
            if isinstance(lengths, Mapping):
                row[f"{side}_mean"], row[f"{side}_cv"] = lengths.get("mean"), lengths.get("cv")
    return plain


def profile_key(row: Row) -> str:
    """What tells the choices apart; a profile kept here has its name and version besides, one for
    prefill or decode alone its role."""
    key = f"{row.get('model')}|{row.get('gpu')}|{row.get('tp', 1)}"
    if row.get("name"):
        key += f"|{row['name']}|{row.get('version') or ''}"
    return f"{key}|{ROLE}{row['role']}" if row.get("role") in APART else key


def study_changes(data: Row, values: Row) -> Row:
    """What ``document.edit`` must change so that the document says what StudyForm says."""
    changes: Row = {}
    shown = study_values(data)
    for field, dotted, per_unit in SCALARS:
        value = values[field] if values[field] != "" else None
        if shown[field] == value:
            continue
        changes[dotted] = (
            tidy(value * per_unit) if per_unit and value is not None else _tidied(value)
        )
    rows = rows_of(data, "policies")
    have = {row.get("name"): row for row in rows if not row.get("label")}
    if set(values["policies"]) != set(shown["policies"]):
        changes["policies"] = [
            *(_short(have.get(name, {"name": name})) for name in values["policies"]),
            *(row for row in rows if row.get("label")),
        ]
    return changes


def row_changes(data: Row, section: str, rows: Sequence[Row]) -> Row:
    """The same for the rows of one section; unchanged rows and keys stay as they are."""
    dotted = LISTS[section]
    have = rows_of(data, dotted)
    if section == "regions":
        new = _regions(have, rows)
    else:
        build = {"profiles": _profile, "sources": _source}.get(section, _plain)
        new = [build(have[at] if (at := row.get("at")) is not None and at < len(have) else {}, row)
               for row in rows]  # fmt: skip
    changes: Row = {} if new == have else {dotted: new or None}
    if section == "profiles":
        named = {row.get("name"): row for row in rows_of(data, "models")}
        wanted = list(dict.fromkeys(row["model"] for row in new))
        if set(wanted) != set(named):
            changes["models"] = [_short(named.get(name, {"name": name})) for name in wanted]
    return changes


def tidy(value: float) -> float:
    """Without the dust of a division, and whole where it is."""
    value = round(value, 6)
    return int(value) if float(value).is_integer() else value


def _short(row: Row) -> Any:
    return row["name"] if set(row) == {"name"} else row


def _with(old: Row, values: Row) -> Row:
    """``old`` with ``values``; an empty value removes its key, unless it said as much before."""
    new = dict(old)
    for key, value in values.items():
        if not _empty(value):
            new[key] = value
        elif not _empty(old.get(key)):
            del new[key]
    return new


def _empty(value: Any) -> bool:
    return value is None or value is False or value in ("", {})


def _plain(old: Row, row: Row) -> Row:
    return _with(old, {key: _tidied(row[key]) for key in row if key not in ("at", "DELETE")})


def _tidied(value: Any) -> Any:
    """Forms give 1000 as 1000.0."""
    return tidy(value) if isinstance(value, float) else value


def _profile(old: Row, row: Row) -> Row:
    model, gpu, tp, *kept = row["profile"].split("|")
    new = {"model": model, "gpu": gpu, "tp": int(tp)}
    if kept and kept[-1].startswith(ROLE):
        new["role"] = kept.pop().removeprefix(ROLE)
    if kept:
        new["name"] = kept[0]
        if kept[1]:
            new["version"] = int(kept[1])
    return old if profile_key(old) == row["profile"] else new


def _source(old: Row, row: Row) -> Row:
    values = {
        key: _tidied(row[key]) for key in ("trace", "series", "model", "regions", "tiers", "scale")
    }
    for side in ("input", "output"):
        lengths = {"mean": row[f"{side}_mean"], "cv": row[f"{side}_cv"]}
        values[f"{side}_tokens"] = {k: tidy(v) for k, v in lengths.items() if v is not None}
    return _with(old, values)


def _region_parts(row: Row) -> list[Row]:
    """One row of the form per region and GPU type."""
    capacity, price = row.get("capacity"), row.get("usd_per_gpu_hour")
    capacity = capacity if isinstance(capacity, Mapping) else {}
    shared = {"at": row["at"], "name": row.get("name"), "like": row.get("like")}
    return [
        {
            **shared,
            "gpu": gpu,
            "capacity": count,
            "usd_per_gpu_hour": price.get(gpu) if isinstance(price, Mapping) else None,
        }
        for gpu, count in capacity.items()
    ] or [shared]


def _regions(have: Sequence[Row], rows: Sequence[Row]) -> list[Row]:
    """Regions of the form's rows; rows of one name make one region."""
    regions: dict[str, Row] = {}
    for name in dict.fromkeys(row["name"] for row in rows):
        mine = [row for row in rows if row["name"] == name]
        at = next((row["at"] for row in mine if row.get("at") is not None), None)
        old = have[at] if at is not None and at < len(have) else {}
        price = {r["gpu"]: r["usd_per_gpu_hour"] for r in mine if r["usd_per_gpu_hour"] is not None}
        regions[name] = _with(
            old,
            {
                "name": name,
                "like": next((row["like"] for row in mine if row["like"]), None),
                "capacity": {row["gpu"]: row["capacity"] for row in mine},
                "usd_per_gpu_hour": {gpu: tidy(usd) for gpu, usd in price.items()},
            },
        )
    return list(regions.values())
