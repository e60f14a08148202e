"""Where a request comes from: the address of the network, and which browser says it asks."""

from __future__ import annotations

from contextlib import suppress
from ipaddress import ip_network

from django.conf import settings
from django.http import HttpRequest

# The first word that a browser says of itself counts: most also say those that come after.
BROWSERS = (
    ("Edg", "Edge"),
    ("OPR/", "Opera"),
    ("Firefox/", "Firefox"),
    ("Chrome/", "Chrome"),
    ("Safari/", "Safari"),
    ("curl/", "curl"),
    ("python", "Python"),
)
SYSTEMS = (
    ("Windows", "Windows"),
    ("Android", "Android"),
    ("iPhone", "iOS"),
    ("iPad", "iOS"),
    ("Mac OS X", "macOS"),
    ("Linux", "Linux"),
)
UNKNOWN = "An unknown browser"


def address_of(request: HttpRequest | None) -> str:
    """Behind the proxy that ends TLS, what that one says last."""
    if request is None:
        return ""
    forwarded = request.headers.get("X-Forwarded-For", "") if settings.HTTPS else ""
    return (forwarded.rpartition(",")[2].strip() or request.META.get("REMOTE_ADDR", ""))[:45]


def browser_of(request: HttpRequest) -> str:
    """In words, such as Firefox on Linux. Versions are left out: they change every few weeks, and
    tell more of a person than is needed."""
    stated = request.headers.get("User-Agent", "")
    browser = next((name for word, name in BROWSERS if word in stated), UNKNOWN)
    system = next((name for word, name in SYSTEMS if word in stated), "")
    return f"{browser} on {system}" if system else browser


def network_of(address: str) -> str:
    """With its nearest neighbours, among which a provider lends addresses anew."""
    with suppress(ValueError):
        return str(ip_network(f"{address}/{48 if ':' in address else 24}", strict=False))
    return address
