"""A workspace is removed with all its rows and arrays; others, accounts and the audit log stay."""

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
import zstandard
from django.apps import apps

from planner.errors import NotAllowed, NotReady, PlannerError
from planner.models import AuditRecord, Run, Scenario, User, Workspace
from planner.models.workspace import MAIN, use_workspace
from planner.services import backups
from planner.services.audit import without_triggers
from planner.services.backups import read_manifest, restore
from planner.services.row_documents import document_of, tables_of_rows
from planner.services.workspaces import workspace_remove
from planner.storage import row_arrays
from tests.planner.samples import client_of, demand_table
from tests.planner.test_permissions import made
from tests.planner.web.pages import signed_in, text_of
from tests.unicode_blocks import ALPHABET


def counts() -> dict[str, int]:
    models = apps.get_app_config("planner").get_models()
    apart = ("AuditRecord", "AuditHead", "Counter", "User", "Workspace")
    return {
        model.__name__: model._base_manager.count()
        for model in models
        if model.__name__ not in apart
    }


def unpacked(path: str) -> dict[str, bytes]:
    with Path(path).open("rb") as file:
        data = zstandard.ZstdDecompressor().stream_reader(file).read()
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        files = [member for member in tar if member.isfile()]
        return {member.name: tar.extractfile(member).read() for member in files}  # type: ignore[union-attr]


@pytest.fixture
def other(planner: User) -> Workspace:
    """With a row of every kind, beside as many in the main one."""
    made(planner, "own")
    other = Workspace.objects.create(name="Other", slug="other")
    with use_workspace(other):
        planner.join(other, "planner")
        made(planner, "their")
        run = Run.objects.filter(state=Run.State.COMPLETED)[0]
        run.store = f"runs/{run.pk}"
        run.save()
        row_arrays.tables_write(run.store, {"plan": demand_table(3)})
    return other


def test_all_of_it_goes_and_is_in_a_file_and_nothing_else_goes(
    planner: User, other: Workspace, data_dir: Path
) -> None:
    people = User.objects.count()
    with use_workspace(other):
        scenario, run = Scenario.objects.get(), Run.objects.exclude(store="").get()
    before = counts()
    with pytest.raises(PlannerError, match="type other"):
        workspace_remove(by=None, workspace=other, confirm="Other")
    with use_workspace(other):
        going = Run.objects.create(kind="plan", state=Run.State.PENDING)
    with pytest.raises(NotReady, match="1 runs are going"):
        workspace_remove(by=None, workspace=other, confirm="other")
    going.delete()
    assert counts() == before
    done = workspace_remove(by=None, workspace=other, confirm="other")
    after = counts()
    gone = sum(before.values()) - sum(after.values())
    assert done.rows == gone + 1  # and the workspace itself
    halved = [name for name in before if before[name] and name not in ("Membership",)]
    assert all(after[name] * 2 == before[name] for name in halved), (before, after)
    assert User.objects.count() == people and not Workspace.objects.filter(slug="other").exists()
    files = unpacked(done.path)
    rows = [json.loads(line) for line in files["rows.jsonl"].split(b"\n")[:-1]]
    accounts = sum(row["model"] == "planner.user" for row in rows)  # that they refer to
    assert accounts > 0 and len(rows) == done.rows + accounts
    documents = {row["pk"]: row["fields"] for row in rows if row["model"] == "planner.scenario"}
    assert documents[scenario.pk]["document"] == scenario.document
    assert read_manifest(Path(done.path)).workspace == "other"
    assert f"arrays/runs/{run.pk}/plan.parquet" in files
    assert not (data_dir / "runs" / str(run.pk)).exists()
    record = AuditRecord.objects.get(action="workspace.removed")
    assert done.path.endswith(json.loads(record.details)["file"])
    assert Path(done.path).stat().st_mode & 0o077 == 0


def rows_of(workspace: Workspace) -> dict[tuple[str, Any], dict[str, Any]]:
    """Every row of a workspace, and the accounts: by table and key."""
    documents = [
        document_of(row)
        for model in tables_of_rows()
        if not model.__name__.startswith("Audit")
        for row in model._base_manager.all()
        if getattr(row, "workspace_id", workspace.pk) == workspace.pk
    ]
    return {(document["model"], document["pk"]): document for document in documents}


def test_its_file_restores_into_an_empty_installation(
    planner: User, other: Workspace, data_dir: Path
) -> None:
    breaks = "\u2028\u2029\x85\n"
    with use_workspace(other):
        Scenario.objects.create(name=f"a{breaks}b", document=ALPHABET)
        run = Run.objects.exclude(store="").get()
    before = rows_of(other)
    path = Path(workspace_remove(by=None, workspace=other, confirm="other").path)
    with pytest.raises(NotReady, match="already"):
        restore(path)
    with pytest.raises(NotReady, match="the workspace other alone"):
        restore(path, replace=True)
    kept = path.rename(data_dir / "kept.tar.zst")
    with without_triggers():
        for model in tables_of_rows():
            model._base_manager.all().delete()
    done = restore(kept)
    after = rows_of(Workspace.objects.get(slug="other"))
    assert len(after) == done.rows
    assert after == {key: before[key] for key in after}
    of_it = {key for key, row in before.items() if row["fields"].get("workspace") == other.pk}
    assert of_it <= set(after)
    assert row_arrays.table_rows(run.store, "plan") == 3


def test_a_file_that_does_not_read_back_removes_nothing(
    other: Workspace, monkeypatch: pytest.MonkeyPatch, data_dir: Path
) -> None:
    removed = data_dir / "removed"
    before, files = counts(), list(removed.glob("*"))
    monkeypatch.setattr(
        backups, "_has_same_content", lambda content, file: False
    )  # a disk that forgets
    with pytest.raises(PlannerError, match=r"manifest\.json"):
        workspace_remove(by=None, workspace=other, confirm="other")
    assert counts() == before and Workspace.objects.filter(slug="other").exists()
    assert list(removed.glob("*")) == files


def test_who_looks_after_the_installation_removes_it_by_page_or_api(
    planner: User, admin: User, other: Workspace
) -> None:
    boss = User.objects.create_superuser("boss", password="x")
    boss.join(Workspace.objects.get(slug=MAIN), "admin")
    page, api = signed_in(boss), client_of(boss)
    assert signed_in(admin).post("/workspaces/other/remove/", {"confirm": "other"}).status_code in (
        403,
        404,
    )
    assert 'name="confirm"' in page.get("/workspaces/").content.decode()
    wrong = page.post("/workspaces/other/remove/", {"confirm": "no"})
    assert (wrong.status_code, "type other" in text_of(wrong)) == (400, True)
    with pytest.raises(NotAllowed):
        workspace_remove(by=admin, workspace=other, confirm="other")
    address = "/api/v1/workspaces/{}/"
    refused = api.delete(address.format("main") + "?confirm=main")
    assert refused.status_code == 403
    answer: Any = api.delete(address.format("other") + "?confirm=other")
    assert answer.status_code == 200 and answer.json()["file"].startswith("other-")
    assert api.delete(address.format("other") + "?confirm=other").status_code == 404
