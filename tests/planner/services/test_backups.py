"""What a backup holds comes back whole, on either database, and never over what is there."""

import json
import tarfile

import pytest
import zstandard

from planner import storage
from planner.errors import NotReady, PlannerError
from planner.models import AuditHead, AuditRecord, Run, Scenario, Trace, User
from planner.services import backups
from planner.services.audit import unguarded, verify
from planner.services.backups import backup, restore
from planner.services.sources import source_create
from planner.services.tokens import token_make
from tests.planner.samples import demand_table

RESTORED = "backup.restored"


def everything():
    """But for the audit log's own word of the restore."""
    return {
        model._meta.label: list(model._base_manager.order_by("pk").values())
        for model in backups._models()
        if model is not AuditHead
    } | {AuditRecord._meta.label: [*AuditRecord.objects.exclude(action=RESTORED).values()]}


@pytest.fixture
def full(completed, planner, trace, tmp_path):
    """Rows of several kinds, with arrays; a run that is going, whose tables are half written."""
    token_make(user=planner)
    trace.store = f"traces/{trace.pk}-abc"
    trace.save()
    storage.tables_write(trace.store, {"demand": demand_table(3)})
    completed.store = f"runs/{completed.pk}"
    completed.save()
    storage.tables_write(completed.store, {"replicas": demand_table(4)})
    Run.objects.create(kind=Run.Kind.PLAN, state=Run.State.FAILED, store="runs/998")  # no tables
    source_create(owner=planner, name="unread", kind="samples", settings={})
    going = Run.objects.create(kind=Run.Kind.PLAN, state=Run.State.RUNNING, store="runs/999")
    storage.tables_write(going.store, {"replicas": demand_table(1)})
    done = backup(tmp_path / "all.tar.zst")
    return done, everything()


def emptied():
    with unguarded():
        for model in backups._models():
            model._base_manager.all().delete()
    for name in backups.KEPT:
        storage.remove(name)


def test_all_comes_back(full, tmp_path):
    done, before = full
    assert (done.path, done.rows) == (
        str(tmp_path / "all.tar.zst"),
        sum(len(rows) for rows in before.values()) + AuditHead.objects.count(),
    )
    assert done.bytes == (tmp_path / "all.tar.zst").stat().st_size
    assert (tmp_path / "all.tar.zst").stat().st_mode & 0o777 == 0o600
    emptied()
    assert restore(tmp_path / "all.tar.zst").rows == done.rows
    assert everything() == before
    log = verify()
    assert (log.problem, log.guarded) == ("", True)  # also of what the backup brought
    assert AuditRecord.objects.latest("number").action == RESTORED
    assert storage.table_rows(Trace.objects.get().store, "demand") == 3
    run = Run.objects.get(state=Run.State.COMPLETED)
    assert storage.table_rows(run.store, "replicas") == 4
    assert not (storage.data_dir() / "runs/999").exists()  # to be made anew
    assert User.objects.get(username="pia").check_password("pia-secret")
    Scenario.objects.create(name="Next", document="version: 1\n")  # ids go on after the old ones


def test_what_is_there_is_only_replaced_when_that_is_said(full, tmp_path, planner):
    _, before = full
    Scenario.objects.create(name="Later", document="version: 1\n")
    with pytest.raises(NotReady, match="2 scenarios"):
        restore(tmp_path / "all.tar.zst")
    assert Scenario.objects.filter(name="Later").exists()
    restore(tmp_path / "all.tar.zst", replace=True)
    assert everything() == before
    assert (storage.data_dir() / "uploads").is_dir()  # the next upload is written there


def spoiled(path, tmp_path, change):
    """The same backup with its manifest changed."""
    folder = tmp_path / "spoiled"
    backups._unpack(path, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    backups._pack(folder, backups.Manifest(**(manifest | change)), tmp_path / "other.tar.zst")
    return tmp_path / "other.tar.zst"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"migration": "9999_later"}, "newer than this one"),
        ({"stores": ["runs/12345"]}, "lacks runs/12345"),
        ({"rows": 1}, "speaks of 1"),
    ],
)
def test_a_backup_that_does_not_fit_changes_nothing(full, tmp_path, change, words):
    _, before = full
    path = spoiled(tmp_path / "all.tar.zst", tmp_path, change)
    with pytest.raises(PlannerError, match=words):
        restore(path, replace=True)
    assert everything() == before
    assert storage.table_rows(Trace.objects.get().store, "demand") == 3


def test_a_damaged_or_foreign_file_is_refused(full, tmp_path):
    _, before = full
    archive = (tmp_path / "all.tar.zst").read_bytes()
    path = tmp_path / "bad.tar.zst"
    with tarfile.open(tmp_path / "climbs.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo("../../climbed"))
    climbs = zstandard.compress((tmp_path / "climbs.tar").read_bytes())
    for content in (b"", b"hello", archive[: len(archive) // 2], climbs):
        path.write_bytes(content)
        with pytest.raises(PlannerError, match="backup"):
            restore(path, replace=True)
    assert everything() == before
    with pytest.raises(PlannerError, match="no such file"):
        restore(tmp_path / "none")


def test_a_store_that_vanishes_meanwhile_is_taken_again(full, tmp_path, monkeypatch):
    calls = []
    link = backups._link

    def once(source, target):
        calls.append(source)
        if len(calls) == 1:
            raise FileNotFoundError(source)
        link(source, target)

    monkeypatch.setattr(backups, "_link", once)
    # And the record that it was begun.
    assert backup(tmp_path / "again.tar.zst").rows == full[0].rows + 1
