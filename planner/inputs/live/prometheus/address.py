"""Check addresses against an allow-list, so that a source cannot reach into the network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from urllib.parse import SplitResult, urlsplit

from planner.errors import SourceError

VARIABLE = "HEADROOM_SOURCES"
PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Address:
    """The address of an HTTP API; ``path`` has no trailing slash."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"


def address_of(url: str, where: str = "url") -> Address:
    """Return the address in ``url`` (in errors: ``where``); raise SourceError if it is none."""
    try:
        parts: SplitResult = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    path = parts.path.rstrip("/")
    has_secret_or_query = parts.username or parts.password or parts.query or parts.fragment
    # Encoded characters and dots could lead out of an allowed path.
    is_plain = url.isascii() and not any(c.isspace() or c in "\\%" for c in url)
    is_plain = is_plain and not {".", ".."} & set(path.split("/"))
    host = parts.hostname
    if parts.scheme not in PORTS or not host or has_secret_or_query or not is_plain:
        raise SourceError(
            f"{where}: {url[:100]} is no address of a server. Write it like "
            "https://prometheus.example:9090, without name or password."
        )
    return Address(parts.scheme, host, port or PORTS[parts.scheme], path)


def allowed_address(url: str, allowed: Sequence[str]) -> Address:
    """Return the address in ``url``; raise SourceError if no ``allowed`` one is at or above it."""
    address = address_of(url)
    for entry in allowed:
        parent = address_of(entry, VARIABLE)
        is_same_server = replace(address, path=parent.path) == parent
        if is_same_server and f"{address.path}/".startswith(f"{parent.path}/"):
            return address
    addresses = ", ".join(allowed) or "none so far"
    raise SourceError(
        f"url: {address.url} is not an address that sources may read ({addresses}); an operator "
        f"adds it to {VARIABLE}."
    )
