"""Query Prometheus' HTTP API without redirects or proxies, and within size and time limits."""

from __future__ import annotations

import base64
import json
import ssl
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPResponse
from typing import Any, cast
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPSHandler,
    OpenerDirector,
    Request,
)

import numpy as np

from planner.errors import SourceError
from planner.inputs.live.prometheus.address import Address
from simulation.arrays import FloatArray, IntArray

MOST_POINTS = 11_000  # points of one series in one response, Prometheus' own limit
TIMEOUT_S = 60.0  # of one request, from the first byte sent to the last byte read
MOST_BYTES = 64_000_000  # of one response
CHUNK = 1 << 16
LEAST_POINTS = 50  # a query with a too large response is halved down to this


class TooLarge(SourceError):
    """A response beyond MOST_BYTES."""


@dataclass(frozen=True, slots=True)
class Access:
    """Credentials (from the environment, never stored), and certificate authorities to trust."""

    authorization: str = field(default="", repr=False)  # value of the header
    ca_file: str = ""  # authorities in addition to the system's

    @classmethod
    def bearer(cls, token: str, ca_file: str = "") -> Access:
        return cls(f"Bearer {token}", ca_file)

    @classmethod
    def basic(cls, user: str, password: str, ca_file: str = "") -> Access:
        pair = base64.b64encode(f"{user}:{password}".encode()).decode()
        return cls(f"Basic {pair}", ca_file)


@dataclass(frozen=True, slots=True, eq=False)
class TimeSeries:
    """One series of a response: ``values`` ``[points]`` at the requested times, NaN if missing."""

    labels: Mapping[str, str]
    values: FloatArray


@dataclass(frozen=True, slots=True)
class QueryTimes:
    """Times at which a query is evaluated: ``points`` times, ``step_s`` apart (epoch seconds)."""

    start_s: int
    step_s: int
    points: int

    @property
    def end_s(self) -> int:
        return self.start_s + (self.points - 1) * self.step_s

    def pieces(self, most: int = MOST_POINTS) -> Iterator[tuple[int, QueryTimes]]:
        """Yield the times in parts of at most ``most`` points: (index of the first point, part)."""
        for first in range(0, self.points, most):
            count = min(most, self.points - first)
            yield first, QueryTimes(self.start_s + first * self.step_s, self.step_s, count)


def _points(values: Any, steps: QueryTimes) -> tuple[IntArray, FloatArray]:
    """Return the time indices and values of a series' (time, text) pairs within ``steps``.

    A value that is not finite is NaN.
    """
    moments = np.array([float(moment) for moment, _ in values])
    time_index = np.rint((moments - steps.start_s) / steps.step_s).astype(np.int64)
    amounts = np.array([float(text) for _, text in values])
    amounts[~np.isfinite(amounts)] = np.nan
    inside = (time_index >= 0) & (time_index < steps.points)
    return time_index[inside], amounts[inside]


class Prometheus:
    """A client of one server. Every expected failure is a SourceError of one sentence."""

    def __init__(
        self,
        address: Address,
        access: Access,
        *,
        timeout_s: float = TIMEOUT_S,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._address, self._access = address, access
        self._timeout_s, self._most_bytes = timeout_s, most_bytes
        self._opener = OpenerDirector()  # has no handler for redirects, proxies or other schemes
        for handler in (
            HTTPHandler(),
            HTTPSHandler(context=_tls_context(access.ca_file)),
            HTTPDefaultErrorHandler(),
            HTTPErrorProcessor(),
        ):
            self._opener.add_handler(handler)

    def names(self, start_s: float, end_s: float, selector: str = "") -> frozenset[str]:
        """Return the names of metrics with a sample in the time, in series of ``selector``."""
        fields = [("start", f"{start_s:.0f}"), ("end", f"{end_s:.0f}")]
        if selector:
            fields.append(("match[]", selector))
        names = self._ask(f"label/__name__/values?{urlencode(fields)}", None)
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise self._not_prometheus_error()
        return frozenset(names)

    def range(self, query: str, steps: QueryTimes) -> list[TimeSeries]:
        """Return the series of a query at the times ``steps``, sorted by labels."""
        values_by_labels: dict[tuple[tuple[str, str], ...], FloatArray] = {}
        for first, piece in steps.pieces():
            for labels, time_index, values in self._piece(query, piece):
                unknown = np.full(steps.points, np.nan)
                values_by_labels.setdefault(labels, unknown)[first + time_index] = values
        series = sorted(values_by_labels.items())
        return [TimeSeries(dict(labels), values) for labels, values in series]

    def _piece(
        self, query: str, steps: QueryTimes
    ) -> Iterator[tuple[tuple[tuple[str, str], ...], Any, FloatArray]]:
        """Yield the labels, time indices and values of each series of a query.

        A time index counts from the first of ``steps``. These times fit into one request. If the
        response is too large, they are split in half and two requests are sent, so a series may
        come twice.
        """
        body = {
            "query": query, "start": str(steps.start_s), "end": str(steps.end_s),
            "step": str(steps.step_s), "timeout": f"{self._timeout_s:.0f}s",
        }  # fmt: skip
        try:
            answer = self._ask("query_range", urlencode(body).encode())
        except TooLarge:
            if steps.points <= LEAST_POINTS:
                raise
            half = steps.points // 2 + 1
            for first_index, half_steps in steps.pieces(half):
                for labels, time_index, values in self._piece(query, half_steps):
                    yield labels, first_index + time_index, values
            return
        try:
            if answer["resultType"] != "matrix":
                raise self._not_prometheus_error()
            for series in answer["result"]:
                labels = tuple(sorted((str(k), str(v)) for k, v in series["metric"].items()))
                yield labels, *_points(series.get("values", []), steps)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            raise self._not_prometheus_error() from None

    def _ask(self, what: str, body: bytes | None) -> Any:
        """Return the data at an API path (by POST with a ``body``), or raise SourceError."""
        headers = {"Accept": "application/json", "User-Agent": "headroom"}
        if self._access.authorization:
            headers["Authorization"] = self._access.authorization
        request = Request(f"{self._address.url}/api/v1/{what}", data=body, headers=headers)  # noqa: S310 - its scheme is checked
        deadline = time.perf_counter() + self._timeout_s
        host = f"{self._address.host}:{self._address.port}"
        try:
            with cast(HTTPResponse, self._opener.open(request, timeout=self._timeout_s)) as answer:
                content = self._read(answer, deadline, host)
        except HTTPError as refused:
            with refused:
                raise self._http_error(refused, host) from None
        except (URLError, HTTPException, OSError, ssl.SSLError) as problem:
            reason = getattr(problem, "reason", problem)
            raise SourceError(
                f"{host} did not answer ({str(reason)[:200] or type(problem).__name__}). Check "
                "that the server runs and can be reached from here."
            ) from None
        try:
            document = json.loads(content)
        except (ValueError, RecursionError):
            raise self._not_prometheus_error() from None
        if not isinstance(document, dict) or document.get("status") != "success":
            raise self._not_prometheus_error()
        return document.get("data")

    def _read(self, answer: HTTPResponse, deadline: float, host: str) -> bytes:
        """Return the body of a response; raise SourceError if too large, or after ``deadline``."""
        parts, size = [], 0
        # The opener's timeout is per socket operation. A slow server could exceed it in total.
        while part := answer.read(CHUNK):
            parts.append(part)
            size += len(part)
            if size > self._most_bytes:
                raise TooLarge(
                    f"{host} answers with more than {self._most_bytes / 1e6:g} MB. Narrow the "
                    "source by match, or take wider bins."
                )
            if time.perf_counter() > deadline:
                raise SourceError(
                    f"{host} did not answer within {self._timeout_s:g} s. Narrow the source by "
                    "match, or take wider bins."
                )
        return b"".join(parts)

    def _http_error(self, refused: HTTPError, host: str) -> SourceError:
        """Return the error for an HTTP error, with the server's reason."""
        if refused.code in (401, 403):
            how = "the credentials that are sent" if self._access.authorization else "to answer"
            return SourceError(
                f"{host} refuses {how} (HTTP {refused.code}). Check the variables that token_env, "
                "or user_env and password_env, name."
            )
        if 300 <= refused.code < 400:
            return SourceError(
                f"{host} redirects to another address (HTTP {refused.code}), which is not "
                "followed. Give the address itself as url."
            )
        reason = ""
        try:
            answer = json.loads(refused.read(CHUNK))
            reason = str(answer.get("error", ""))[:300] if isinstance(answer, dict) else ""
        except (ValueError, RecursionError, OSError, HTTPException):
            pass
        because = f": {reason}" if reason else ""
        return SourceError(f"{host} refused (HTTP {refused.code}){because}.")

    def _not_prometheus_error(self) -> SourceError:
        """Return the error for a response that is not as Prometheus' API has it."""
        return SourceError(
            f"{self._address.host}:{self._address.port} is no Prometheus server. "
            "Check url, with the path before /api/v1 if there is one."
        )


def _tls_context(ca_file: str) -> ssl.SSLContext:
    """Return a TLS context that trusts the system's authorities and those in ``ca_file``."""
    context = ssl.create_default_context()
    if ca_file:
        try:
            context.load_verify_locations(cafile=ca_file)
        except (OSError, ssl.SSLError):
            raise SourceError(
                f"HEADROOM_SOURCES_CA: {ca_file} is no readable file of certificates (PEM)."
            ) from None
    return context
