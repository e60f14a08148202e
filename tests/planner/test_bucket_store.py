"""Arrays in a bucket: what one machine writes another reads, and what the bucket loses is told."""

import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured

from planner.domain.run_parts import IN_PROCESS
from planner.errors import BucketUnreachable, DamagedFile, NotReady
from planner.inputs.ingest import IngestOptions
from planner.inputs.live.samples import samples_of_rows
from planner.models import Run, Source, Trace
from planner.selectors.traces import trace_character
from planner.services import arrays, backups
from planner.services.execution import run_body
from planner.services.runs import run_remove
from planner.services.sources import reading_store, source_create, source_series
from planner.services.traces import trace_upload
from planner.storage import bucket as bucket_store
from planner.storage import row_arrays
from planner.storage.bucket import BucketStore
from planner.storage.bucket_settings import ArraysBucket, arrays_bucket
from tests.planner.s3 import s3_server
from tests.planner.samples import demand_table
from tests.planner.services.test_source_reading import requests_csv

ROOT = Path(__file__).parents[2]
READ_ELSEWHERE = """
import django; django.setup()
import hashlib, sys
from planner.storage import row_arrays
held = row_arrays.local_path(sys.argv[1])
for path in sorted(p for p in held.rglob("*") if p.is_file()):
    print(path.relative_to(held), hashlib.sha256(path.read_bytes()).hexdigest())
"""


@pytest.fixture(scope="module")
def server():
    with s3_server("arrays") as endpoint:
        yield endpoint


@pytest.fixture
def bucket(server):
    url, client = server
    for key in keys(client, ""):
        client.delete_object(Bucket="arrays", Key=key)
    return ArraysBucket("arrays", "prod", url, "us-east-1", "key", "secret", ""), client


@pytest.fixture
def machine(bucket, tmp_path, settings):
    """Be one of several machines: each has a folder of its own, and the bucket in common."""
    settings.HEADROOM_ARRAYS = bucket[0]

    def be(name: str) -> BucketStore:
        settings.HEADROOM_DATA_DIR = tmp_path / name
        settings.HEADROOM_DATA_DIR.mkdir(exist_ok=True)
        return row_arrays.bucket()

    be("a")
    return be


def keys(client, below="prod/"):
    listed = client.list_objects_v2(Bucket="arrays", Prefix=below).get("Contents", ())
    return [entry["Key"] for entry in listed]


def digests(folder):
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(f.relative_to(folder)): sha256(f.read_bytes()).hexdigest() for f in files}


def test_a_cache_drops_what_nobody_asked_for_longest(machine, bucket, tmp_path, settings):
    """What is dropped comes again from the bucket; what a run may be reading stays."""
    names = ["runs/1", "runs/2", "uploads/3"]
    for name in names[:2]:
        row_arrays.tables_write(name, {"replicas": demand_table(400)})
    row_arrays.folder("uploads").mkdir()
    row_arrays.folder(names[2]).write_bytes(b"x" * 5000)
    for name in names:
        row_arrays.keep(name)
    taken = row_arrays.bytes_of(names)
    there = lambda where: [(tmp_path / where / name).exists() for name in names]  # noqa: E731
    settings.HEADROOM_MAX_RUN_SECONDS = 3600
    settings.HEADROOM_CACHE_BYTES = 1
    machine("b")
    for name in names:
        row_arrays.local_path(name)
    assert there("b") == [True, True, True]  # all asked for just now
    ago = time.time() - 4000
    stamps = {name: tmp_path / "b" / bucket_store.STAMPS / f"{name}.json" for name in names}
    for name, path in stamps.items():
        os.utime(path, (ago + names.index(name), ago + names.index(name)))
    row_arrays.local_path(names[0])  # used again
    assert row_arrays.bucket().make_room() == 2
    assert there("b") == [True, False, False] and not stamps[names[1]].exists()
    assert row_arrays.table_read("runs/2", "replicas").equals(demand_table(400))
    assert row_arrays.local_path(names[2]).read_bytes() == b"x" * 5000
    settings.HEADROOM_CACHE_BYTES = taken
    for path in stamps.values():
        os.utime(path, (ago, ago))
    assert row_arrays.bucket().make_room() == 0  # within its limit
    assert there("a") == [True, True, True]  # another machine's has none


def test_what_stores_take_is_what_their_objects_take(machine):
    row_arrays.tables_write("runs/1", {"replicas": demand_table(400)})
    row_arrays.tables_write("runs/12", {"replicas": demand_table(40)})
    written = sum(path.stat().st_size for path in row_arrays.folder("runs/1").iterdir())
    assert row_arrays.bytes_of(["runs/1"]) == 0  # not kept yet
    row_arrays.keep("runs/1")
    row_arrays.keep("runs/12")
    manifest = len((row_arrays.folder("arrays/runs/1.json")).read_bytes())
    assert row_arrays.bytes_of(["runs/1", "runs/99"]) == written + manifest


def test_a_store_comes_whole_and_follows_its_bucket(machine, bucket, tmp_path, monkeypatch):
    monkeypatch.setattr(bucket_store, "PART_BYTES", 1000)  # several objects a file
    row_arrays.tables_write("runs/7", {"replicas": demand_table(3), "more": demand_table(400)})
    (row_arrays.folder("runs/7") / "deep").mkdir()
    (row_arrays.folder("runs/7") / "deep/none").write_bytes(b"")
    (row_arrays.folder("runs/7") / ".draft.partial").write_bytes(b"x")
    row_arrays.keep("runs/7")
    written = digests(tmp_path / "a/runs/7")
    machine("b")
    assert row_arrays.tables_list("runs/7") == ["more", "replicas"]
    assert row_arrays.table_read("runs/7", "more").equals(demand_table(400))
    assert digests(tmp_path / "b/runs/7") == {k: v for k, v in written.items() if k[0] != "."}
    # Written anew there: other tables, and objects of the version before are gone.
    row_arrays.remove("runs/7")
    row_arrays.tables_write("runs/7", {"replicas": demand_table(5)})
    row_arrays.keep("runs/7")
    before = len(keys(bucket[1]))
    row_arrays.tables_write("runs/7", {"replicas": demand_table(6)})
    row_arrays.keep("runs/7")
    assert len(keys(bucket[1])) == before
    machine("a")
    assert row_arrays.tables_list("runs/7") == ["replicas"]  # not what it wrote itself
    assert row_arrays.table_rows("runs/7", "replicas") == 6
    row_arrays.remove("runs/7")
    assert keys(bucket[1]) == [] and not row_arrays.exists("runs/7")
    machine("b")
    with pytest.raises(DamagedFile, match="runs/7 in the bucket is not there"):
        row_arrays.tables_list("runs/7")


def test_another_process_with_an_empty_folder_reads_the_same_bytes(
    machine, bucket, planner, tmp_path
):
    """A web process takes a file in, a worker elsewhere reads it, a third has the same trace."""
    rows = requests_csv(0, 3000).encode()
    trace, run, _ = trace_upload(
        owner=planner, chunks=[rows], file_name="a.csv", options=IngestOptions(name="a.csv")
    )
    machine("worker")
    Run.objects.filter(pk=run.pk).update(state=Run.State.RUNNING)
    run_body(run=Run.objects.get(pk=run.pk), progress=lambda *_: None, parts=IN_PROCESS)
    assert not keys(bucket[1], "prod/uploads/")  # read, so kept no more
    trace = Trace.objects.get(pk=trace.pk)
    machine("a")
    assert trace_character(trace).trace == trace.name
    environment = {name: value for name, value in os.environ.items() if name != "REDIS_URL"}
    done = subprocess.run(
        [sys.executable, "-c", READ_ELSEWHERE, trace.store], cwd=ROOT, capture_output=True,
        text=True, check=True, env=environment | {
            "DJANGO_SETTINGS_MODULE": "planner.config.settings",
            "HEADROOM_DATA_DIR": str(tmp_path / "third"),
            "HEADROOM_ARRAYS": "s3://arrays/prod",
            "HEADROOM_ARRAYS_URL": bucket[0].url,
            "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret",
        },
    )  # fmt: skip
    read = dict(line.split() for line in done.stdout.splitlines())
    assert read == digests(tmp_path / "worker" / trace.store) and len(read) >= 4


@pytest.mark.parametrize("how", ["lost", "changed", "no manifest", "spoilt manifest"])
def test_what_the_bucket_lost_or_changed_is_a_sentence(machine, bucket, completed, api, how):
    row_arrays.tables_write("runs/5", {"replicas": demand_table(3)})
    row_arrays.keep("runs/5")
    Run.objects.filter(pk=completed.pk).update(store="runs/5")
    manifest = "prod/runs/5/manifest.json"
    part = next(key for key in keys(bucket[1]) if key != manifest)
    key = manifest if "manifest" in how else part
    if how in ("lost", "no manifest"):
        bucket[1].delete_object(Bucket="arrays", Key=key)
    else:
        bucket[1].put_object(Bucket="arrays", Key=key, Body=b"{}")
    machine("b")
    assert not row_arrays.exists("runs/5") or how == "changed"
    answer = api.get(f"/api/v1/runs/{completed.pk}/tables/replicas/")
    assert answer.status_code == 409, answer.content
    assert "in the bucket" in answer.json()["detail"] and "backup" in answer.json()["detail"]
    machine("a")  # which has it whole, and had it from there
    if how in ("lost", "changed"):
        assert row_arrays.table_rows("runs/5", "replicas") == 3


def test_a_file_spoilt_here_is_had_from_the_bucket_again(machine):
    row_arrays.tables_write("runs/5", {"replicas": demand_table(3)})
    row_arrays.keep("runs/5")
    (row_arrays.folder("runs/5") / "replicas.parquet").write_bytes(b"PAR1")
    with pytest.raises(DamagedFile, match="'replicas'"):
        row_arrays.table_read("runs/5", "replicas")
    assert row_arrays.table_rows("runs/5", "replicas") == 3


def test_two_machines_add_to_one_series(machine, planner):
    source = source_create(owner=planner, name="live", kind="samples", settings={}, bin_s=300)
    for number, name in enumerate(["a", "b", "a", "c"]):
        machine(name)
        row = Source.objects.get(pk=source.pk)
        moment = datetime.fromtimestamp(1_699_999_800 + 300 * number, tz=UTC)
        rows = [{"time": moment, "requests": 10 + number}]
        samples = samples_of_rows(rows, 300, datetime.now(tz=UTC))
        reading_store(source=row, samples=samples)
    machine("d")
    assert source_series(source).bins()["requests"].to_list() == [10, 11, 12, 13]


def test_backup_restore_sweep_and_what_is_taken_in(machine, bucket, completed, tmp_path, settings):
    kept, settings.HEADROOM_ARRAYS = settings.HEADROOM_ARRAYS, None
    with pytest.raises(NotReady, match="HEADROOM_ARRAYS"):
        arrays.arrays_copy_to_bucket()
    store = f"runs/{completed.pk}"
    row_arrays.remove(store)
    row_arrays.tables_write(store, {"replicas": demand_table(4)})
    Run.objects.filter(pk=completed.pk).update(store=store)
    settings.HEADROOM_ARRAYS = kept  # an installation that had its arrays in the folder
    done = arrays.arrays_copy_to_bucket()
    assert (done.present, done.copied, done.lost) == (0, 1, ())
    machine("b")
    backups.backup(tmp_path / "all.tar.zst")
    row_arrays.bucket().remove(store)
    assert arrays.arrays_copy_to_bucket().copied == 1  # of what is here
    machine("c")
    row_arrays.bucket().remove(store)
    assert arrays.arrays_copy_to_bucket().lost == (store,)
    row_arrays.tables_write("runs/99999", {"replicas": demand_table(1)})
    row_arrays.keep("runs/99999")
    backups.restore(tmp_path / "all.tar.zst", replace=True)
    machine("d")
    assert row_arrays.table_rows(store, "replicas") == 4
    assert arrays.orphans_sweep(min_age_s=3600.0) == 0 and row_arrays.exists("runs/99999")
    assert arrays.orphans_sweep(min_age_s=-60.0) == 1 and not row_arrays.exists("runs/99999")
    run_remove(run=Run.objects.get(pk=completed.pk))
    assert keys(bucket[1]) == []


def test_a_bucket_that_does_not_answer(machine, bucket, settings, monkeypatch):
    monkeypatch.setattr(bucket_store, "ATTEMPTS", 1)
    settings.HEADROOM_ARRAYS = ArraysBucket("others", "", bucket[0].url, "us-east-1", "k", "s", "")
    with pytest.raises(
        BucketUnreachable, match=r"s3://others, which cannot be used now: .*no bucket"
    ):
        row_arrays.keep("runs/5")
    settings.HEADROOM_ARRAYS = ArraysBucket("x", "", "http://127.0.0.1:9", "r", "k", "s", "")
    with pytest.raises(BucketUnreachable, match="did not answer"):
        row_arrays.local_path("runs/5")
    row_arrays.remove("runs/5")  # is swept later


def test_what_operators_may_write(monkeypatch):
    assert arrays_bucket() is None
    for text in ("bucket", "s3://", "s3://a/../b", "s3://UPPER/x", "https://s3.example/b"):
        monkeypatch.setenv("HEADROOM_ARRAYS", text)
        with pytest.raises(ImproperlyConfigured, match=r"such as s3://headroom/arrays\."):
            arrays_bucket()
    monkeypatch.setenv("HEADROOM_ARRAYS", "s3://headroom/arrays/")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    with pytest.raises(ImproperlyConfigured, match="AWS_ACCESS_KEY_ID"):
        arrays_bucket()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
    place = arrays_bucket()
    assert (place.name, place.url) == ("s3://headroom/arrays", "https://s3.us-east-1.amazonaws.com")
    assert "hidden" not in repr(place)
