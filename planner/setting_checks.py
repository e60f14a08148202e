"""Check whether a text is valid for a setting: an address, a host, a network, a name."""

import ipaddress
import re
from collections.abc import Sequence
from contextlib import suppress
from urllib.parse import SplitResult, urlsplit

HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?|[0-9A-Fa-f:]*:[0-9A-Fa-f:.]+")
DOMAIN = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")
MAIL = re.compile(r"([^<>@,]*<)?[^<>@,\s]+@(?P<host>[^<>@,\s]+)(?(1)>)")
SLUG = re.compile(r"[A-Za-z0-9_-]{1,40}")


def is_url(text: str, *, path: bool = True, schemes: Sequence[str] = ("http", "https")) -> bool:
    """Return whether ``text`` is a plain address of a server, with a path only if allowed."""
    if not text.isascii() or any(c.isspace() or c in "\\%" for c in text):
        return False
    try:
        parts = urlsplit(text)
        return (
            parts.scheme in schemes
            and _is_plain_address(parts)
            and (path or parts.path in ("", "/"))
        )
    except ValueError:
        return False


def _is_plain_address(parts: SplitResult) -> bool:
    """Return whether an address has a host, perhaps a port and path, and nothing else."""
    has_more = "@" in parts.netloc or parts.query or parts.fragment
    has_dots = {".", ".."} & set(parts.path.split("/"))
    has_host = parts.hostname and is_host(parts.hostname) and parts.port != 0
    return bool(has_host and not has_more and not has_dots)


def is_host(text: str) -> bool:
    """Return whether ``text`` is a host name, an IPv4 or an IPv6 address."""
    return HOST.fullmatch(text) is not None


def is_host_name(text: str) -> bool:
    """Return whether ``text`` may be in ALLOWED_HOSTS: ``a.example``, ``.example`` or ``*``.

    ``check_production`` refuses ``*``.
    """
    return text == "*" or is_host(text.removeprefix(".").removeprefix("[").removesuffix("]"))


def is_csrf_origin(text: str) -> bool:
    """Return whether ``text`` is an origin as in Django's CSRF_TRUSTED_ORIGINS."""
    return is_url(text.replace("://*.", "://", 1), path=False) and not text.endswith("/")


def is_host_origin_or_network(text: str) -> bool:
    """Return whether ``text`` is a host, an origin or a network, as outgoing_requests takes it."""
    with suppress(ValueError):
        ipaddress.ip_network(text)
        return True
    return is_url(text if "://" in text else f"https://{text}")


def is_domain(text: str) -> bool:
    """Return whether ``text`` is a domain name."""
    return DOMAIN.fullmatch(text) is not None


def is_slug(text: str) -> bool:
    """Return whether ``text`` is 1 to 40 letters, digits, hyphens and underscores."""
    return SLUG.fullmatch(text) is not None


def is_mail_address(text: str) -> bool:
    """Return whether ``text`` is ``user@host`` or ``Name <user@host>``."""
    match = MAIL.fullmatch(text)
    return match is not None and text.isprintable() and is_domain(match["host"])
