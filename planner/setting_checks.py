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
    named = "@" in parts.netloc or parts.query or parts.fragment
    dots = {".", ".."} & set(parts.path.split("/"))
    return bool(parts.hostname and is_host(parts.hostname) and parts.port != 0) and not (
        named or dots
    )


def is_host(text: str) -> bool:
    """Return whether it is a host name, an IPv4 or an IPv6 address."""
    return HOST.fullmatch(text) is not None


def is_host_name(text: str) -> bool:
    """Return whether ``text`` may be in ALLOWED_HOSTS: ``a.example``, ``.example`` or ``*``.

    ``check_production`` refuses ``*``.
    """
    return text == "*" or is_host(text.removeprefix(".").removeprefix("[").removesuffix("]"))


def is_csrf_origin(text: str) -> bool:
    """Return whether it is an origin as Django's CSRF_TRUSTED_ORIGINS takes it."""
    return is_url(text.replace("://*.", "://", 1), path=False) and not text.endswith("/")


def is_host_origin_or_network(text: str) -> bool:
    """Return whether it is an entry that ``planner.services.outgoing_requests`` accepts."""
    with suppress(ValueError):
        ipaddress.ip_network(text)
        return True
    return is_url(text if "://" in text else f"https://{text}")


def is_domain(text: str) -> bool:
    """Return whether it is a domain name."""
    return DOMAIN.fullmatch(text) is not None


def is_slug(text: str) -> bool:
    """Return whether it is a slug of letters, digits, hyphens and underscores."""
    return SLUG.fullmatch(text) is not None


def is_mail_address(text: str) -> bool:
    """Return whether it is ``user@host`` or ``Name <user@host>``."""
    match = MAIL.fullmatch(text)
    return match is not None and text.isprintable() and is_domain(match["host"])
