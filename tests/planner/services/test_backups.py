"""What a backup holds comes back whole, on either database, and never over what is there."""

import json
import shutil
import tarfile
from datetime import UTC, datetime

import pytest
import zstandard
from django.db import connection

from planner.errors import NotReady, PlannerError
from planner.models import (
    ActivePlan,
    AuditHead,
    AuditRecord,
    Counter,
    Run,
    Scenario,
    Source,
    Trace,
    User,
)
from planner.services import backups
from planner.services.audit import record, without_triggers
from planner.services.backups import backup, restore
from planner.services.row_documents import tables_of_rows
from planner.services.sources import source_create
from planner.services.tokens import token_create
from planner.storage import row_arrays
from tests.planner.samples import demand_table
from tests.planner.services.test_audit import assert_refused_by_the_log
from tests.unicode_blocks import ALPHABET

RESTORED = "backup.restored"
GONE = object()
NOW = datetime(2026, 3, 1, tzinfo=UTC)
BREAKS = "\u2028\u2029\x85\x0b\x0c\x1c\x1d\x1e\n\r"  # str.splitlines splits on each


def everything():
    """But for the audit log's own word of the restore."""
    return {
        model._meta.label: list(model._base_manager.order_by("pk").values())
        for model in tables_of_rows()
        if model is not AuditHead
    } | {AuditRecord._meta.label: [*AuditRecord.objects.exclude(action=RESTORED).values()]}


@pytest.fixture
def full(completed, planner, trace, tmp_path):
    """Rows of several kinds, with arrays; a run that is going, whose tables are half written."""
    token_create(user=planner)
    trace.store = f"traces/{trace.pk}-abc"
    trace.save()
    row_arrays.tables_write(trace.store, {"demand": demand_table(3)})
    completed.store = f"runs/{completed.pk}"
    completed.save()
    row_arrays.tables_write(completed.store, {"replicas": demand_table(4)})
    Run.objects.create(kind=Run.Kind.PLAN, state=Run.State.FAILED, store="runs/998")  # no tables
    source_create(owner=planner, name="unread", kind="samples", settings={})
    going = Run.objects.create(kind=Run.Kind.PLAN, state=Run.State.RUNNING, store="runs/999")
    row_arrays.tables_write(going.store, {"replicas": demand_table(1)})
    done = backup(tmp_path / "all.tar.zst")
    return done, everything()


def assert_log_is_guarded():
    assert_refused_by_the_log(f"UPDATE {AuditRecord._meta.db_table} SET actor = 'nobody'")


def emptied():
    with without_triggers():
        for model in tables_of_rows():
            model._base_manager.all().delete()
    for name in backups.DATA_FOLDERS:
        row_arrays.remove(name)


def test_all_comes_back(full, tmp_path):
    done, before = full
    assert (done.path, done.rows) == (
        str(tmp_path / "all.tar.zst"),
        sum(len(rows) for rows in before.values()) + AuditHead.objects.count(),
    )
    assert done.checked_in == connection.vendor
    assert done.tables == len(backups.read_manifest(tmp_path / "all.tar.zst").tables)
    assert done.bytes == (tmp_path / "all.tar.zst").stat().st_size
    assert (tmp_path / "all.tar.zst").stat().st_mode & 0o777 == 0o600
    emptied()
    assert restore(tmp_path / "all.tar.zst").rows == done.rows
    assert everything() == before
    assert_log_is_guarded()
    newest = AuditRecord.objects.latest("number")
    assert (newest.action, newest.number) == (RESTORED, AuditRecord.objects.count())
    assert row_arrays.table_rows(Trace.objects.get().store, "demand") == 3
    run = Run.objects.get(state=Run.State.COMPLETED)
    assert row_arrays.table_rows(run.store, "replicas") == 4
    assert not (row_arrays.data_dir() / "runs/999").exists()  # to be made anew
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
    assert (row_arrays.data_dir() / "uploads").is_dir()  # the next upload is written there


def unpacked(path, folder):
    with (
        path.open("rb") as file,
        zstandard.ZstdDecompressor().stream_reader(file) as archive,
        tarfile.open(fileobj=archive, mode="r|") as tar,
    ):
        tar.extractall(folder, filter="data")
    return folder


def packed(folder, path):
    with zstandard.open(path, "wb") as file, tarfile.open(fileobj=file, mode="w|") as tar:
        for name in ("manifest.json", "rows.jsonl", "arrays"):
            tar.add(folder / name, arcname=name)
    return path


def spoiled(path, tmp_path, change=None, rows=lambda lines: lines):
    """The same backup with its manifest or its lines of rows changed."""
    folder = unpacked(path, tmp_path / "spoiled")
    manifest = json.loads((folder / "manifest.json").read_text())
    for name in [name for name, value in (change or {}).items() if value is GONE]:
        del manifest[name], change[name]
    (folder / "manifest.json").write_text(json.dumps(manifest | (change or {})))
    lines = (folder / "rows.jsonl").read_bytes().split(b"\n")[:-1]
    (folder / "rows.jsonl").write_bytes(b"".join(line + b"\n" for line in rows(lines)))
    return packed(folder, tmp_path / "other.tar.zst")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"migration": "9999_later"}, "newer than this one"),
        ({"stores": ["runs/12345"]}, "runs/12345"),
        ({"rows": 1}, "manifest 1"),
        ({"workspace": "other"}, "the workspace other alone"),
        ({"tables": {"planner.run": {"rows": 1, "sha256": "0"}}}, "has 1 rows instead of 0"),
    ],
)
def test_a_backup_that_does_not_fit_changes_nothing(full, tmp_path, change, words):
    _, before = full
    path = spoiled(tmp_path / "all.tar.zst", tmp_path, change)
    with pytest.raises(PlannerError, match=words):
        restore(path, replace=True)
    assert everything() == before
    assert row_arrays.table_rows(Trace.objects.get().store, "demand") == 3


def test_a_row_that_the_database_refuses_changes_nothing(full, tmp_path):
    def without_a_name(lines):
        rows = [json.loads(line) for line in lines]
        for row in rows:
            if row["model"] == "planner.scenario":
                row["fields"]["name"] = None
        return [json.dumps(row).encode() for row in rows]

    _, before = full
    (scenario,) = Scenario.objects.all()
    path = spoiled(tmp_path / "all.tar.zst", tmp_path, rows=without_a_name)
    with pytest.raises(PlannerError) as problem:
        restore(path, replace=True)
    assert f"planner.scenario {scenario.pk}" in str(problem.value)
    assert "Nothing was changed" in str(problem.value)
    assert everything() == before
    assert row_arrays.table_rows(Trace.objects.get().store, "demand") == 3
    assert_log_is_guarded()


def test_a_backup_of_format_1_comes_back_with_all_line_breaks(full, tmp_path):
    """The version before wrote characters as they are, and no figures of tables."""

    def as_before(lines):
        for line in lines:
            row = json.loads(line)
            if row["model"] == "planner.auditrecord":
                row["fields"] |= {"previous": "", "sha256": "0" * 64}
            if row["model"] == "planner.scenario":
                row["fields"]["name"] = f"a{BREAKS}b"
            yield json.dumps(row, ensure_ascii=False).encode()

    done, _ = full
    change = {"format": 1, "tables": GONE, "workspace": GONE, "migration": "0037_retention"}
    path = spoiled(tmp_path / "all.tar.zst", tmp_path, change, as_before)
    back = restore(path, replace=True)
    assert back.rows == done.rows
    records = AuditRecord.objects.count() - 1
    assert back.left_out == {
        "planner.auditrecord.previous": records,
        "planner.auditrecord.sha256": records,
    }
    assert Scenario.objects.get().name == f"a{BREAKS}b"


def test_a_backup_with_former_names_comes_back(completed, planner, tmp_path):
    """Migration 0043 renamed a table and columns."""

    def as_before(lines):
        for line in lines:
            row = json.loads(line)
            fields = row["fields"]
            if row["model"] == "planner.activeplan":
                row["model"] = "planner.planinforce"
            if row["model"] == "planner.counter" and fields["kind"] == "activeplan":
                fields["kind"] = "planinforce"
            if row["model"] == "planner.run":
                fields["removal_told_at"] = fields.pop("removal_announced_at")
            if row["model"] == "planner.source":
                fields["read_to"] = fields.pop("read_until")
            yield json.dumps(row).encode()

    completed.removal_announced_at = NOW
    completed.save()
    source = source_create(owner=planner, name="unread", kind="samples", settings={})
    Source.objects.filter(pk=source.pk).update(read_until=NOW)
    plan = ActivePlan.objects.create(
        run=completed, number=completed.pk, scenario="a", policy="b", repeat="once", zone="UTC",
        begins=NOW, ends=NOW, pools=[], since=NOW,
    )  # fmt: skip
    backup(tmp_path / "all.tar.zst")
    before = everything()
    change = {"tables": GONE, "migration": "0041_attempts_without_account_news"}
    path = spoiled(tmp_path / "all.tar.zst", tmp_path, change, as_before)
    assert restore(path, replace=True).left_out == {}
    assert everything() == before
    assert Counter.objects.get(kind="activeplan").last == plan.pk


def test_text_of_every_kind_comes_back(full, planner, tmp_path):
    record("user.refused", f"x{BREAKS}y", by=None, words=BREAKS)
    Scenario.objects.create(name=f"n{BREAKS}", document=f"# {ALPHABET}")
    before = everything()
    backup(tmp_path / "broken.tar.zst")
    begun = AuditRecord.objects.latest("number")
    restore(tmp_path / "broken.tar.zst", replace=True)
    after = everything()
    label = AuditRecord._meta.label
    assert [row for row in after[label] if row["number"] != begun.number] == before[label]
    assert after | {label: before[label]} == before


def test_a_backup_that_does_not_read_back_is_not_kept(full, tmp_path, monkeypatch):
    path = tmp_path / "never.tar.zst"
    for fault in (lose_a_row, change_a_row, lose_an_array, change_an_array):
        with monkeypatch.context() as broken:
            fault(broken)
            with pytest.raises(PlannerError) as problem:
                backup(path)
        assert str(path) in str(problem.value)
        assert not list(tmp_path.glob("never*")), fault
    assert not list(row_arrays.data_dir().glob("backup-*"))


def lose_a_row(broken):
    """Such as one whose line another parser takes for two."""
    line_of = backups.line_of
    skipped = []

    def once(document):
        if document["model"] == "planner.user" and not skipped:
            skipped.append(document)
            return b""
        return line_of(document)

    broken.setattr(backups, "line_of", once)


def change_a_row(broken):
    line_of = backups.line_of
    broken.setattr(backups, "line_of", lambda row: line_of(row).replace(b'"pia"', b'"mia"'))


def lose_an_array(broken):
    spoil_packed(broken, lambda path: path.unlink())


def change_an_array(broken):
    spoil_packed(broken, lambda path: path.write_bytes(b"?" * path.stat().st_size))


def spoil_packed(broken, spoil):
    """Spoil one array in the file after it was packed."""
    pack = backups._pack

    def spoiling(folder, manifest, path):
        pack(folder, manifest, path)
        copy = unpacked(path, path.parent / "copy")
        spoil(next(copy.rglob("*.parquet")))
        packed(copy, path)
        shutil.rmtree(copy)

    broken.setattr(backups, "_pack", spoiling)


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
