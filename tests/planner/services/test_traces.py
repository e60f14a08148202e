"""Traces taken in: known again by their bytes, refused with a reason, removed when unused."""

import pytest
from django.db import OperationalError

from planner.errors import IngestError, NoRoom, NotAllowed, NotReady, RunCancelled
from planner.inputs.ingest import IngestOptions
from planner.models import Run, Trace
from planner.models.workspace import Workspace, use_workspace
from planner.services import quota, traces
from planner.services.runs import run_cancel
from planner.services.worker import run_execute
from planner.storage import row_arrays
from tests.at_once import at_once

ROWS = b"TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-18 00:00:10.0000000,100,10\n"
BAD = b"TIMESTAMP,ContextTokens,GeneratedTokens\n"


def upload(owner, content=ROWS, name="conv.csv", key="", **options):
    return traces.trace_upload(
        owner=owner,
        chunks=[content[:20], content[20:]],
        file_name=name,
        options=IngestOptions(name=name, **options),
        idempotency_key=key,
    )


def kept(data_dir):
    """Uploaded files that wait to be read."""
    folder = data_dir / traces.UPLOADS
    return set(folder.iterdir()) if folder.exists() else set()


@pytest.fixture
def before(data_dir):
    return kept(data_dir)


@pytest.fixture
def path(tmp_path):
    """The same rows as a file of this machine."""
    file = tmp_path / "conv.csv"
    file.write_bytes(ROWS)
    return file


def test_an_upload_waits_in_a_file_until_it_has_been_read(planner, data_dir, before):
    trace, run, new = upload(planner)
    assert new
    assert (trace.state, trace.name, trace.bytes) == ("uploaded", "conv", len(ROWS))
    (path,) = kept(data_dir) - before
    assert path.read_bytes() == ROWS
    assert run_execute(run_id=run.pk).state == Run.State.COMPLETED
    assert kept(data_dir) == before
    trace.refresh_from_db()
    assert (trace.state, trace.requests, trace.format) == ("ready", 1, "azure")
    assert (data_dir / trace.store).is_dir()


def test_the_same_bytes_are_known_again(planner, colleague, data_dir, before):
    trace, run, _ = upload(planner)
    again, going, new = upload(colleague, name="copy.csv")
    assert (again, going, new) == (trace, run, False)
    run_execute(run_id=run.pk)
    again, going, new = upload(colleague, name="copy.csv")
    assert (again, going, new) == (trace, None, False)
    assert kept(data_dir) == before


def test_the_same_bytes_read_in_another_way_are_another_trace(planner):
    trace, _, _ = upload(planner)
    other, _, new = upload(planner, model="mine")
    assert new
    assert other.name == "conv-2"
    assert upload(planner, model="mine")[0] == other
    assert upload(planner)[0] == trace


@pytest.mark.django_db(transaction=True)
def test_of_uploads_at_the_same_moment_one_makes_the_trace(planner, data_dir):
    before = kept(data_dir)
    made = at_once(4, lambda _: upload(planner))
    assert len({trace.pk for trace, _, _ in made}) == 1
    assert {run.pk for _, run, _ in made} == {Run.objects.get().pk}
    assert sorted(new for _, _, new in made) == [False, False, False, True]
    assert len(kept(data_dir) - before) == 1


def test_a_refused_file_says_why_and_may_come_again(planner, data_dir, before):
    trace, run, _ = upload(planner, BAD)
    over = run_execute(run_id=run.pk)
    assert over.state == Run.State.FAILED
    trace.refresh_from_db()
    assert (trace.state, trace.problem) == ("refused", over.problem)
    assert "conv.csv" in trace.problem
    assert kept(data_dir) == before
    again, second, new = upload(planner, BAD)
    assert new
    assert (again.pk, second.pk) != (trace.pk, run.pk)


def test_a_file_whose_ingest_was_cancelled_is_read_when_it_comes_again(planner, data_dir, before):
    trace, run, _ = upload(planner)
    run_cancel(run=run, user=planner)
    again, second, new = upload(planner)
    assert (again, new) == (trace, False)
    assert second != run
    assert len(kept(data_dir) - before) == 1  # the first upload is not left lying
    assert run_execute(run_id=second.pk).state == Run.State.COMPLETED
    assert kept(data_dir) == before


@pytest.mark.parametrize("stop", [RunCancelled(), RuntimeError("a bug")])
def test_a_file_whose_ingest_stopped_half_way_is_read_when_it_comes_again(
    planner, data_dir, before, monkeypatch, stop
):
    def stopped(*_, **__):
        raise stop

    trace, run, _ = upload(planner)
    with monkeypatch.context() as patched:
        patched.setattr(traces, "ingest_file", stopped)
        assert run_execute(run_id=run.pk).state in (Run.State.CANCELLED, Run.State.ERRORED)
    assert kept(data_dir) == before
    again, second, _ = upload(planner)
    assert again == trace
    assert run_execute(run_id=second.pk).state == Run.State.COMPLETED


@pytest.mark.parametrize("stop", [RunCancelled(), OperationalError("gone")])
def test_a_file_whose_ingest_another_worker_goes_on_with_is_left_to_it(
    planner, data_dir, before, monkeypatch, stop
):
    """Its worker was taken for dead, or lost its database."""

    def lost(*_, **__):
        Run.objects.update(state=Run.State.PENDING)
        raise stop

    trace, run, _ = upload(planner)
    with monkeypatch.context() as patched:
        patched.setattr(traces, "ingest_file", lost)
        run_execute(run_id=run.pk)
    assert len(kept(data_dir) - before) == 1
    assert run_execute(run_id=run.pk).state == Run.State.COMPLETED
    trace.refresh_from_db()
    assert (trace.state, kept(data_dir)) == ("ready", before)


def test_a_file_that_a_command_has_read_meanwhile_is_not_read_again(
    planner, data_dir, before, path, monkeypatch
):
    trace, run, _ = upload(planner)
    assert traces.trace_ingest_path(path=path, options=IngestOptions()) == trace
    trace.refresh_from_db()
    monkeypatch.setattr(traces, "ingest_file", None)
    done = run_execute(run_id=run.pk)
    assert (done.state, done.result) == (Run.State.COMPLETED, trace.report)
    assert kept(data_dir) == before


def test_a_trace_whose_columns_are_gone_is_read_when_its_file_comes_again(planner, path):
    trace = traces.trace_ingest_path(path=path, options=IngestOptions())
    row_arrays.remove(trace.store)
    same, run, new = upload(planner)
    assert (same, new) == (trace, False)
    assert run_execute(run_id=run.pk).problem == ""
    assert row_arrays.exists(trace.store)
    row_arrays.remove(trace.store)
    traces.trace_ingest_path(path=path, options=IngestOptions())
    assert row_arrays.exists(trace.store)


def test_a_trace_removed_while_it_is_read_is_a_sentence(planner, path, monkeypatch):
    ingested = traces.ingest_file

    def removed(*args, **options):
        Trace.objects.all().delete()
        return ingested(*args, **options)

    monkeypatch.setattr(traces, "ingest_file", removed)
    with pytest.raises(NotReady, match="was removed while it was read"):
        traces.trace_ingest_path(path=path, options=IngestOptions())
    assert not Trace.objects.exists()


@pytest.mark.parametrize("content", [b"a,b\n1,2\n", b"", b"timestamp,prompt_tokens\nx,y\n"])
def test_a_file_that_a_command_cannot_read_leaves_nothing(db, data_dir, before, tmp_path, content):
    path = tmp_path / "odd.csv"
    path.write_bytes(content)
    with pytest.raises(IngestError):
        traces.trace_ingest_path(path=path, options=IngestOptions())
    assert not Trace.objects.exists()
    assert kept(data_dir) == before


def test_a_file_above_the_quota_leaves_nothing(planner, data_dir, before, settings):
    settings.HEADROOM_MAX_UPLOAD_BYTES = 50
    with pytest.raises(IngestError, match="larger than"):
        upload(planner)
    assert kept(data_dir) == before
    assert not Trace.objects.exists()


def workspace_bytes() -> int:
    return quota.disk_usages(None)[0].used


def test_a_workspace_takes_no_more_of_the_disk_than_it_may(
    planner, data_dir, before, settings, tmp_path
):
    """What it takes is what its own rows name, arrays and files that wait alike."""
    assert workspace_bytes() == 0
    trace, run, _ = upload(planner)
    assert workspace_bytes() == len(ROWS)
    run_execute(run_id=run.pk)
    trace.refresh_from_db()
    folder = data_dir / trace.store
    used = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    assert workspace_bytes() == used > 0
    with use_workspace(Workspace.objects.create(name="Other", slug="other")):
        assert workspace_bytes() == 0
    settings.HEADROOM_MAX_WORKSPACE_BYTES = used + 20  # the first piece fits
    held = kept(data_dir)
    other = ROWS.replace(b",10\n", b",11\n")
    with pytest.raises(NoRoom, match=r"conv.csv does not fit: .*MAX_WORKSPACE_BYTES\); remove"):
        upload(planner, other)
    assert kept(data_dir) == held
    path = tmp_path / "log.csv"
    path.write_bytes(other)
    with pytest.raises(NoRoom, match=r"log.csv does not fit"):
        traces.trace_ingest_path(path=path, options=IngestOptions())
    assert Trace.objects.count() == 1
    traces.trace_delete(trace=trace, user=planner)
    upload(planner, other)


def test_a_person_takes_no_more_of_the_disk_than_one_may_in_all_workspaces(
    planner, colleague, data_dir, before, settings
):
    trace, run, _ = upload(planner)
    run_execute(run_id=run.pk)
    trace.refresh_from_db()
    folder = data_dir / trace.store
    used = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    settings.HEADROOM_MAX_PERSON_BYTES = used + len(ROWS) + 5
    with use_workspace(Workspace.objects.create(name="Other", slug="other")):
        assert quota.disk_usage(planner).used == used and workspace_bytes() == 0
    other, third = (ROWS.replace(b",10\n", b",%d\n" % answer) for answer in (11, 12))
    upload(planner, other)  # what waits to be read counts too
    assert quota.disk_usage(planner).remaining == 5
    held = kept(data_dir)
    words = r"conv.csv does not fit: your traces .* \(HEADROOM_MAX_PERSON_BYTES\); remove those"
    with pytest.raises(NoRoom, match=words):
        upload(planner, third)
    assert kept(data_dir) == held
    upload(colleague, third)


@pytest.mark.parametrize(
    ("file_name", "name"),
    [
        ("azure2023_conv.csv.gz", "azure2023_conv"),
        ("Chat May 2024.parquet", "chat-may-2024"),
        ("../../etc/passwd", "etcpasswd"),
        ("日本.csv", "trace"),
        ("x" * 300 + ".csv", "x" * 100),
    ],
)
def test_any_file_name_gives_a_name_to_refer_to(planner, file_name, name):
    trace, _, _ = upload(planner, name=file_name)
    assert trace.name == name


def test_a_file_of_this_machine_is_read_at_once_and_known_again(tmp_path, path, db):
    trace = traces.trace_ingest_path(path=path, options=IngestOptions())
    assert (trace.state, trace.requests, trace.owner) == ("ready", 1, None)
    assert traces.trace_ingest_path(path=path, options=IngestOptions()) == trace
    for wrong, words in ((tmp_path / "none.csv", "no such file"), (tmp_path, "folder")):
        with pytest.raises(IngestError, match=words):
            traces.trace_ingest_path(path=wrong, options=IngestOptions())


def test_a_file_of_this_machine_takes_a_name(path, db):
    trace = traces.trace_ingest_path(path=path, options=IngestOptions(), name="may")
    assert trace.name == "may"
    assert traces.trace_ingest_path(path=path, options=IngestOptions(), name="may") == trace
    other = IngestOptions(model="llama-3.1-8b")
    for options, name in ((IngestOptions(), "june"), (other, "may"), (other, "a b")):
        with pytest.raises(IngestError):
            traces.trace_ingest_path(path=path, options=options, name=name)
    assert Trace.objects.count() == 1


def test_a_trace_whose_name_is_only_a_word_of_a_scenario_is_not_in_use(planner, scenario):
    for name in ("trace", "con", "chat"):
        other = Trace.objects.create(name=name, file_name=name, sha256=name, bytes=1, owner=planner)
        traces.trace_delete(trace=other, user=planner)
    assert not Trace.objects.exists()


def test_a_trace_that_is_being_read_stays(planner, data_dir, before):
    trace, run, _ = upload(planner)
    with pytest.raises(NotReady, match="Cancel its run"):
        traces.trace_delete(trace=trace, user=planner)
    run_cancel(run=run, user=planner)
    traces.trace_delete(trace=trace, user=planner)
    assert not Trace.objects.exists()
    assert kept(data_dir) == before


def test_viewers_take_nothing_in_and_only_owners_or_admins_remove(
    trace, viewer, colleague, admin, data_dir, before
):
    with pytest.raises(NotAllowed):
        upload(viewer)
    assert kept(data_dir) == before
    for user in (viewer, colleague):
        with pytest.raises(NotAllowed):
            traces.trace_delete(trace=trace, user=user)
    with pytest.raises(NotAllowed):
        traces.trace_run(trace=trace, owner=viewer)
    traces.trace_delete(trace=trace, user=admin)
    assert not Trace.objects.exists()
