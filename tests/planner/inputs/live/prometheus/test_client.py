"""The client against a server of ours: pieces, halves, limits, refusals."""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import parse_qs

import numpy as np
import pytest

from planner.errors import SourceError
from planner.inputs.live.prometheus.address import address_of, allowed_address
from planner.inputs.live.prometheus.client import MOST_POINTS, Access, Prometheus, QueryTimes
from planner.inputs.live.prometheus.queries import ENGINES, engines_present
from planner.inputs.live.prometheus.span_reader import Span
from tests.local_http import Handler, serving

MATRIX = (
    b'{"status": "success", "data": {"resultType": "matrix", '
    b'"result": [{"metric": {}, "values": [[%b, %b]]}]}}'
)


class Server:
    """Answers every range query with the moments asked for as values; refuses too many points."""

    def __init__(self) -> None:
        self.asked: list[dict[str, str]] = []
        self.headers: list[str | None] = []
        self.status, self.body, self.location = 200, b"", ""

    def answer(self, form: dict[str, str]) -> tuple[int, bytes]:
        start, end, step = (int(form[name]) for name in ("start", "end", "step"))
        if (end - start) // step > MOST_POINTS:
            return 400, b'{"status": "error", "error": "exceeded maximum resolution"}'
        values = [[t, str(t - 1000)] for t in range(start, end + 1, step) if t % 7]
        series = {"metric": {"a": "x"}, "values": values}
        data = {"resultType": "matrix", "result": [series] if values else []}
        return 200, json.dumps({"status": "success", "data": data}).encode()


@pytest.fixture
def server() -> Iterator[tuple[Server, str]]:
    with _running(Server()) as running:
        yield running


@contextmanager
def _running(server: Server) -> Iterator[tuple[Server, str]]:
    class Api(Handler):
        def do_POST(self) -> None:
            form = {key: values[0] for key, values in parse_qs(self.body().decode()).items()}
            server.asked.append(form)
            server.headers.append(self.headers.get("Authorization"))
            status, body = server.answer(form)
            if server.status != 200 or server.body:
                status, body = server.status, server.body
            self.answer(status, body, {"Location": server.location} if server.location else {})

    with serving(Api) as address:
        yield server, f"http://{address}"


def client(url: str, access: Access | None = None, **limits) -> Prometheus:
    return Prometheus(address_of(url), access or Access(), **limits)


def test_more_points_than_are_given_at_once_come_in_pieces(server):
    asked, url = server
    (course,) = client(url).range("up", QueryTimes(1000, 10, 2 * MOST_POINTS + 5))
    sizes = [(int(f["end"]) - int(f["start"])) // 10 + 1 for f in asked.asked]
    assert sizes == [MOST_POINTS, MOST_POINTS, 5]
    moments = 10.0 * np.arange(2 * MOST_POINTS + 5)
    gap = (moments + 1000) % 7 == 0  # steps without a sample are left out, and are gaps
    np.testing.assert_array_equal(course.values, np.where(gap, np.nan, moments))


def test_an_answer_too_large_is_asked_for_in_halves_and_then_refused(server):
    asked, url = server
    at_once = client(url).range("up", QueryTimes(1000, 10, 400))
    halves = client(url, most_bytes=3000).range("up", QueryTimes(1000, 10, 400))
    assert len(asked.asked) > 3
    np.testing.assert_array_equal(halves[0].values, at_once[0].values)
    with pytest.raises(SourceError, match="Narrow the source by match"):
        client(url, most_bytes=100).range("up", QueryTimes(1000, 10, 400))


def test_credentials_are_sent_and_shown_to_nobody(server):
    asked, url = server
    client(url, Access.bearer("s3cret")).range("up", QueryTimes(1000, 10, 2))
    client(url, Access.basic("pia", "pw")).range("up", QueryTimes(1000, 10, 2))
    assert asked.headers == ["Bearer s3cret", f"Basic {base64.b64encode(b'pia:pw').decode()}"]
    assert "s3cret" not in repr(Access.bearer("s3cret"))


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (302, b"moved", r"redirects to another address \(HTTP 302\), which is not followed"),
        (401, b"", "refuses to answer"),
        (422, b'{"status": "error", "error": "query processing would load too much"}', "too much"),
        (200, b"<html>", "is no Prometheus server"),
        (200, b'{"status": "success", "data": {"resultType": "vector"}}', "no Prometheus"),
        (200, b'{"status": "success", "data": {"resultType": "matrix", "result": [3]}}', "no Prom"),
        # Beyond what a float holds: for the value, and for the moment.
        (200, MATRIX % (b"1000", b"9" * 400), "is no Prometheus server"),
        (200, MATRIX % (b"9" * 400, b"1"), "is no Prometheus server"),
        (500, b"[" * 60_000, r"refused \(HTTP 500\)"),
    ],
    ids=lambda content: str(content)[:40],
)
def test_what_goes_wrong_is_a_sentence(server, status, body, says):
    asked, url = server
    asked.status, asked.body, asked.location = status, body, url
    with pytest.raises(SourceError, match=says):
        client(url).range("up", QueryTimes(1000, 10, 2))
    assert len(asked.asked) == 1


def test_a_server_that_is_not_there():
    with pytest.raises(SourceError, match=r"127\.0\.0\.1:9 did not answer"):
        client("http://127.0.0.1:9").range("up", QueryTimes(1000, 10, 2))


def test_only_listed_addresses():
    allowed = ["http://prom:9090", "https://mimir.example/prometheus"]
    assert allowed_address("http://prom:9090/", allowed).url == "http://prom:9090"
    assert allowed_address("https://mimir.example/prometheus/eu", allowed).port == 443
    for url in (
        "http://prom:9091", "https://prom:9090", "http://prom.evil:9090", "http://169.254.169.254",
        "https://mimir.example/prometheus-other", "https://mimir.example/prometheus/../admin",
        "https://mimir.example/", "http://prom:9090@evil.example", "http://evil#@prom:9090",
        "http://prom:9090?x", "ftp://prom:9090", "http://prom:port", "http://prom\\@evil:9090",
    ):  # fmt: skip
        with pytest.raises(SourceError):
            allowed_address(url, allowed)


def test_spans_of_a_year_are_read_in_pieces_that_a_counter_fits_into():
    spans = list(Span(0, 60, 25_000).spans())
    assert all(span.edges.points <= MOST_POINTS for span in spans)
    assert [span.start_s for span in spans[1:]] == [span.end_s for span in spans[:-1]]
    assert sum(span.bins for span in spans) == 25_000


def test_engines_by_the_names_that_are_there():
    today = frozenset({"vllm:request_success_total", "vllm:kv_cache_usage_perc", "up"})
    (engine,) = engines_present(today)
    assert (engine.name, [m.what for m in engine.metrics]) == ("vllm", ["requests", "kv_use"])
    former = engines_present(frozenset({"vllm:request_success_total", "vllm:gpu_cache_usage_perc"}))
    assert former[0].metrics[1].names == ("vllm:gpu_cache_usage_perc",)
    front = frozenset({"nv_llm_http_service_requests_total"})
    assert [engine.name for engine in engines_present(front)] == ["dynamo"]
    assert [engine.name for engine in engines_present(front | today)] == [
        "vllm"
    ]  # it would count twice
    assert [engine.name for engine in engines_present(front | today, "dynamo")] == ["dynamo"]
    plain = frozenset({"request_success_total", "e2e_request_latency_seconds_bucket"})
    assert engines_present(plain) == () and engines_present(plain, "trtllm")[0].name == "trtllm"
    assert len({engine.name for engine in ENGINES}) == 6
