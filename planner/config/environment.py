"""Settings that come from environment variables, with one clear sentence for a bad one."""

import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from django.core.exceptions import ImproperlyConfigured

SECRET_CHARACTERS = 32
# What may lie in a file instead, as vaults and Kubernetes mount it, named by NAME_FILE; and all
# secrets of live sources, whose names begin so.
IN_FILES = (
    "SECRET_KEY",
    "DATABASE_URL",
    "REDIS_URL",
    "HEADROOM_SMTP",
    "HEADROOM_OIDC_CLIENT_SECRET",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
)
OF_SOURCES = "HEADROOM_SOURCE_"
SECRET_BYTES = 10_000


def secrets_read() -> None:
    """Put what the files hold into the environment, where processes that this one starts find it
    too; what names the files is taken out, so that they read nothing again."""
    for named in [name for name in os.environ if name.endswith("_FILE")]:
        name = named.removesuffix("_FILE")
        if name not in IN_FILES and not name.startswith(OF_SOURCES):
            continue
        path = os.environ[named].strip()
        if not path:
            continue
        if os.environ.get(name):
            raise ImproperlyConfigured(f"{name} and {named} are both set; leave one of them out.")
        os.environ[name] = _secret_of(Path(path), named)
        del os.environ[named]


def _secret_of(path: Path, named: str) -> str:
    try:
        with path.open("rb") as file:
            secret = file.read(SECRET_BYTES + 1).decode().strip()
    except (OSError, UnicodeDecodeError) as problem:
        why = getattr(problem, "strerror", None) or "it is no text"
        raise ImproperlyConfigured(
            f"{named} is {path}, which cannot be read ({why}); mount the secret there, readable by "
            "the user that Headroom runs as."
        ) from None
    if not secret or len(secret) > SECRET_BYTES:
        raise ImproperlyConfigured(
            f"{named} is {path}, which holds no secret of 1 to {SECRET_BYTES:,} bytes."
        )
    return secret


def env_bool(name: str, *, default: bool = False) -> bool:
    value = os.environ.get(name, "").strip().lower()
    if value in ("", "0", "false", "no"):
        return False if value else default
    if value in ("1", "true", "yes"):
        return True
    raise ImproperlyConfigured(f"{name} is {value!r}; give 1 or 0.")


def env_int(name: str, default: int) -> int:
    value = os.environ.get(name, "").strip()
    if not value:
        return default
    if not value.isdecimal() or int(value) == 0:
        raise ImproperlyConfigured(f"{name} is {value!r}; give a whole number above 0.")
    return int(value)


def env_choice(name: str, choices: tuple[str, ...]) -> str:
    """One of ``choices``; the first where nothing is given."""
    value = os.environ.get(name, "").strip() or choices[0]
    if value not in choices:
        raise ImproperlyConfigured(f"{name} is {value!r}; give {' or '.join(choices)}.")
    return value


def compiled_folder(checkout: Path, data: Path) -> Path:
    """Where the compiled simulator is kept: with the code that it was made of, so that another data
    folder does not compile it anew; with the data where nothing may be written beside the code."""
    var = checkout / "var"
    with suppress(OSError):
        var.mkdir(mode=0o700, exist_ok=True)
    writable = (
        var.is_dir() and var.stat().st_uid == os.geteuid() and os.access(var, os.W_OK | os.X_OK)
    )
    return (var if writable else data) / "numba"


def memory_mb() -> int:
    """What this machine or container may hold, in MB."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # "max": no limit of its own
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii"))
        machine = min(machine, limit)
    return machine // 1_000_000


def env_list(name: str) -> list[str]:
    """Comma-separated values, blanks removed."""
    return [item.strip() for item in os.environ.get(name, "").split(",") if item.strip()]


def check_production(*, debug: bool, hosts: list[str], secret: str) -> None:
    """Refuse to start with what is only for a machine of one's own."""
    if len(secret) < SECRET_CHARACTERS:
        raise ImproperlyConfigured(
            f"SECRET_KEY has {len(secret)} characters, which can be guessed; give at least "
            f"{SECRET_CHARACTERS} random ones, such as of `openssl rand -hex 32`, or none to have "
            "one made."
        )
    if "*" in hosts:
        raise ImproperlyConfigured(
            "HEADROOM_ALLOWED_HOSTS is *, by which links can be led elsewhere; name the hosts that "
            "people use."
        )
    if debug and hosts:
        raise ImproperlyConfigured(
            "HEADROOM_DEBUG=1 shows the program's insides, and HEADROOM_ALLOWED_HOSTS has others "
            "see them; leave one of the two out."
        )


class Smtp(NamedTuple):
    """A mail server; ``starttls`` and ``tls`` exclude each other."""

    host: str
    port: int
    user: str
    password: str
    starttls: bool
    tls: bool


SMTP_PORTS = {"smtp": 25, "smtp+tls": 587, "smtps": 465}


def smtp_server(address: str, *, site: str) -> Smtp:
    """Of ``smtp+tls://USER:PASSWORD@HOST:PORT``. Mails hold links, so the site's own address must
    be known."""
    parts = urlsplit(address)
    if parts.scheme not in SMTP_PORTS or not parts.hostname:
        raise ImproperlyConfigured(
            "HEADROOM_SMTP is no address of a mail server; give one such as "
            "smtp+tls://user:password@mail.example.com:587."
        )
    if not site:
        raise ImproperlyConfigured(
            "HEADROOM_SMTP is set and HEADROOM_URL is not; give the address that people use, such "
            "as https://headroom.example.com, for the links in mails."
        )
    return Smtp(
        parts.hostname,
        parts.port or SMTP_PORTS[parts.scheme],
        unquote(parts.username or ""),
        unquote(parts.password or ""),
        parts.scheme == "smtp+tls",
        parts.scheme == "smtps",
    )


def secret_key(data_dir: Path) -> str:
    """SECRET_KEY of the environment, else the one made once and kept in ``data_dir``.

    Several machines that serve one database must be given the same SECRET_KEY.
    """
    if key := os.environ.get("SECRET_KEY", ""):
        return key
    return kept_secret(data_dir / "secret-key.txt", random_bytes=48)


def kept_secret(path: Path, *, random_bytes: int) -> str:
    """The secret in ``path``, made on first use, readable by its owner only."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f"{path.name}.{os.getpid()}")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_urlsafe(random_bytes))
        try:
            os.link(draft, path)  # unlike a rename, never replaces one just made by another process
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    return path.read_text(encoding="ascii").strip()
