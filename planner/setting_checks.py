"""Read settings from environment variables, and check whether a text is valid for one.

A bad value raises ImproperlyConfigured with one sentence: the variable and what to give instead.
"""

import ipaddress
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from urllib.parse import SplitResult, urlsplit

from django.core.exceptions import ImproperlyConfigured

HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?|[0-9A-Fa-f:]*:[0-9A-Fa-f:.]+")
DOMAIN = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")
MAIL = re.compile(r"([^<>@,]*<)?[^<>@,\s]+@(?P<host>[^<>@,\s]+)(?(1)>)")
SLUG = re.compile(r"[A-Za-z0-9_-]{1,40}")
Check = Callable[[str], object]  # is true for a valid text
MAX_INT = 10**15  # limit of whole numbers without another limit


def env_bool(name: str) -> bool:
    """Return a variable as True or False; False if it is not set."""
    value = os.environ.get(name, "").strip().lower()
    if value in ("", "0", "false", "no"):
        return False
    if value in ("1", "true", "yes"):
        return True
    raise ImproperlyConfigured(f"{name} is {value[:40]!r}. Give 1 or 0.")


def env_int(name: str, default: int, *, most: int = MAX_INT) -> int:
    """Return a whole number from 1 to ``most``, or ``default`` if the variable is not set."""
    value = os.environ.get(name, "").strip()
    if not value:
        return default
    is_number = re.fullmatch(r"[0-9]{1,16}", value) is not None
    if not is_number or not 0 < int(value) <= most:
        raise ImproperlyConfigured(
            f"{name} is {value[:40]!r}. Give a whole number above 0, at most {most:,}."
        )
    return int(value)


def env_choice(name: str, choices: tuple[str, ...]) -> str:
    """Return one of ``choices``, ignoring case, or the first if the variable is not set."""
    value = os.environ.get(name, "").strip()
    if not value:
        return choices[0]
    for choice in choices:
        if value.casefold() == choice.casefold():
            return choice
    raise ImproperlyConfigured(f"{name} is {value[:40]!r}. Give {' or '.join(choices)}.")


def env_text(
    name: str, default: str = "", *, check: Check = str.isprintable, give: str = ""
) -> str:
    """Return the text of a variable, or ``default`` if it is not set.

    If ``check`` refuses the text, the message tells to "Give" what ``give`` says.
    """
    value = os.environ.get(name, "").strip()
    if value and not check(value):
        raise ImproperlyConfigured(f"{name} is {value[:80]!r}. Give {give or 'text'}.")
    return value or default


def env_list(name: str, *, check: Check = str.isprintable, give: str = "") -> list[str]:
    """Return the comma-separated values of a variable; for ``check`` and ``give`` see env_text."""
    items = [item.strip() for item in os.environ.get(name, "").split(",") if item.strip()]
    for item in items:
        if not check(item):
            raise ImproperlyConfigured(f"{name} has {item[:80]!r}. Give {give or 'text'}.")
    return items


def is_url(text: str, *, path: bool = True, schemes: Sequence[str] = ("http", "https")) -> bool:
    """Return whether ``text`` is a plain address of a server, with a path only if allowed."""
    if not text.isascii() or any(letter.isspace() or letter in "\\%" for letter in text):
        return False
    try:
        parts = urlsplit(text)
        is_plain = parts.scheme in schemes and _is_plain_address(parts)
    except ValueError:  # of a wrong port
        return False
    return is_plain and (path or parts.path in ("", "/"))


def _is_plain_address(parts: SplitResult) -> bool:
    """Return whether an address has a host, perhaps a port and path, and nothing else."""
    if "@" in parts.netloc or parts.query or parts.fragment or parts.port == 0:
        return False
    has_dots = not {".", ".."}.isdisjoint(parts.path.split("/"))
    return not has_dots and is_host(parts.hostname or "")


def is_host(text: str) -> bool:
    """Return whether ``text`` is a host name, an IPv4 or an IPv6 address."""
    return HOST.fullmatch(text) is not None


def is_host_name(text: str) -> bool:
    """Return whether ``text`` may be in ALLOWED_HOSTS: ``a.example``, ``.example`` or ``*``.

    ``check_production`` refuses ``*``.
    """
    host = text.removeprefix(".").removeprefix("[").removesuffix("]")
    return text == "*" or is_host(host)


def is_csrf_origin(text: str) -> bool:
    """Return whether ``text`` is an origin as in Django's CSRF_TRUSTED_ORIGINS."""
    without_wildcard = text.replace("://*.", "://", 1)
    return is_url(without_wildcard, path=False) and not text.endswith("/")


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
