"""A bucket that files are dropped into: a real S3-compatible server, asked as any other is."""

import gzip

import pytest

from planner.errors import SourceError
from planner.models import Source
from planner.services import source_reading
from planner.services.source_reading import source_preview, source_read
from planner.services.sources import current_trace, source_create, source_series
from tests.local_http import Handler, serving
from tests.planner.s3 import s3_server
from tests.planner.services.test_source_reading import requests_csv

KEYS = {
    "access_key_env": "HEADROOM_SOURCE_KEY",
    "secret_key_env": "HEADROOM_SOURCE_SECRET",
}


@pytest.fixture
def put(settings, monkeypatch):
    """Put an object, by key and bytes, into the bucket ``logs`` of a store on this machine."""
    monkeypatch.setenv("HEADROOM_SOURCE_KEY", "key")
    monkeypatch.setenv("HEADROOM_SOURCE_SECRET", "secret")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # of the environment: not used
    with s3_server("logs") as (url, store):
        settings.HEADROOM_SOURCES = [f"{url}/logs"]

        def put(key: str, body: bytes) -> None:
            store.put_object(Bucket="logs", Key=key, Body=body)

        put.url = url  # type: ignore[attr-defined]
        yield put


def test_a_bucket_that_files_are_dropped_into(planner, settings, put, monkeypatch):
    fields = {"url": put.url, "bucket": "logs", "prefix": "prod/", **KEYS}
    put("prod/a/1.csv", requests_csv(0, 1000).encode())
    put("prod/b/2.csv.gz", gzip.compress(requests_csv(1000, 3000).encode()))
    put("prod/", b"")
    put("prod/.still", b"x")
    put("prod-of-others/3.csv", requests_csv(9000, 9900).encode())
    seen = source_preview(user=planner, kind="bucket", fields=fields)
    assert seen.files == ("a/1.csv", "b/2.csv.gz")
    monkeypatch.setattr(source_reading, "MAX_FILES", 1)  # at a time: the rest at the next
    source = source_create(owner=planner, name="logs", kind="bucket", settings=fields, bin_s=300)
    read = lambda: source_read(source_id=source.pk, only_due=False)  # noqa: E731
    assert read().readings.count() == 1
    assert read().state == Source.State.READ and source.readings.count() == 2
    bins = source_series(source).read().bins
    assert bins["requests"].to_list() == [None, *[15.0] * 8, None]  # as of a folder
    assert current_trace(source).requests == 120
    monkeypatch.setattr(source_reading, "MAX_FILES", 1000)
    assert read().readings.count() == 2  # each once
    put("prod/c/again.csv", requests_csv(0, 1000).encode())  # the same bytes
    put("prod/no.csv", b"no,such\n1,2\n")
    put("prod/z.csv", requests_csv(6000, 6900).encode())
    settings.HEADROOM_MAX_UPLOAD_BYTES = len(requests_csv(0, 1000))
    put("prod/large.csv", b"a" * 100_000)
    for _ in range(2):  # told once
        after = read()
    assert after.problem.startswith("Refused: large.csv")
    problems = dict(
        after.readings.exclude(problem="").exclude(file_name="").values_list("file_name", "problem")
    )
    assert (
        set(problems) == {"no.csv", "large.csv"} and "is larger than the" in problems["large.csv"]
    )
    assert after.readings.filter(file_name="z.csv", problem="").exists()
    kept = list(source_series(source).folder.iterdir())
    assert all(path.suffix == ".parquet" for path in kept), kept  # no copy stays behind


def test_what_a_bucket_may_not_be(planner, settings, put, monkeypatch):
    def refused(**changes: object) -> str:
        fields = {"url": put.url, "bucket": "logs", **KEYS, **changes}
        with pytest.raises(SourceError) as problem:
            source_preview(user=planner, kind="bucket", fields=fields)
        return str(problem.value)

    assert "adds it to HEADROOM_SOURCES" in refused(bucket="others")
    assert "adds it to HEADROOM_SOURCES" in refused(url="http://127.0.0.1:1")
    assert refused(bucket="No_Name").startswith("bucket: ")
    assert refused(prefix="a/../b").startswith("url: ")
    assert refused(access_key_env="AWS_SECRET_ACCESS_KEY").startswith("access_key_env: ")
    assert refused(secret_key_env=None).startswith(
        "secret_key_env: required because access_key_env"
    )
    settings.HEADROOM_SOURCES = [put.url]
    assert "has no bucket others" in refused(bucket="others")
    monkeypatch.delenv("HEADROOM_SOURCE_KEY")
    assert "nothing usable in HEADROOM_SOURCE_KEY" in refused()


def test_a_store_cannot_send_the_request_elsewhere(planner, settings):
    """Neither by a redirect nor by naming another region, and what it says is one sentence."""
    asked: list[str] = []

    class Store(Handler):
        def do_GET(self) -> None:
            asked.append(self.path)
            status, headers, body = answers[0]
            self.answer(status, body, headers)

        do_HEAD = do_GET

    fault = b"<Error><Code>%s</Code><Message>m</Message></Error>"
    region = {"x-amz-bucket-region": "eu-west-1"}
    with serving(Store) as address:
        url = f"http://{address}"
        settings.HEADROOM_SOURCES = [url]
        for answer, words in (
            ((301, {**region, "Location": "http://127.0.0.1:9/"}, b""), "is not in the region of"),
            ((307, {"Location": "http://127.0.0.1:9/"}, b""), "is not in the region of"),
            ((400, region, fault % b"AuthorizationHeaderMalformed"), "is not in the region of"),
            ((403, {}, fault % b"AccessDenied"), "refuses to have logs read (AccessDenied)"),
            ((200, {}, b"<html>hello"), "answered '500'"),  # as the library has it
            ((500, {}, fault % b"InternalError"), "answered 'InternalError'"),
        ):
            answers = [answer]
            with pytest.raises(SourceError, match=r"127\.0\.0\.1") as problem:
                source_preview(user=planner, kind="bucket", fields={"url": url, "bucket": "logs"})
            assert words in str(problem.value)
        assert all(path.startswith("/logs?list") for path in asked) and len(asked) < 10
