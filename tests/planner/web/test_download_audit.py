"""Who took data out is in the audit log, once an hour, by page and API."""

from django.core.cache import cache
from django.urls import get_resolver

from planner.models import AuditRecord, Run, User
from planner.web.download_audit import AUDITED
from tests.planner.samples import client_of
from tests.planner.web.pages import signed_in


def taken() -> list[tuple[str, str, str]]:
    rows = AuditRecord.objects.filter(action="data.taken").order_by("number")
    return [(row.actor, row.key, row.details) for row in rows]


def test_what_is_taken_is_written_down(completed: Run, planner: User, viewer: User) -> None:
    cache.clear()
    page, api = signed_in(viewer), client_of(planner)
    for _ in range(2):
        for address in ("demand.csv", "demand.parquet", "result.json", "what-if/"):
            page.get(f"/runs/{completed.pk}/{address}")
        page.get(f"/runs/{completed.pk}/nothing.csv")
        api.get(f"/api/v1/runs/{completed.pk}/tables/demand/")
    run = f"/runs/{completed.pk}"
    assert taken() == [
        ("vera", f"{run}/demand.csv", "{}"),
        ("vera", f"{run}/demand.parquet", "{}"),
        ("vera", f"{run}/result.json", "{}"),
        ("pia", f"/api/v1{run}/tables/demand/", '{"token": "log-in"}'),
    ]
    record = AuditRecord.objects.filter(action="data.taken").last()
    assert record is not None and record.workspace == "main"


def test_each_address_that_is_watched_is_there() -> None:
    names = {
        f"{space}:{name}"
        for space in ("web", "api")
        for name in get_resolver().namespace_dict[space][1].reverse_dict
        if isinstance(name, str)
    }
    assert names >= AUDITED
