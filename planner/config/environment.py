"""Read settings from environment variables.

A bad value raises ImproperlyConfigured with one sentence: the variable, the fault and the values
to give instead. Secrets are never in the sentence.
"""

import os
import re
import secrets
import ssl
import sys
from collections.abc import Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import dj_database_url
from django.core.exceptions import ImproperlyConfigured

from planner.setting_checks import is_host

SECRET_CHARACTERS = 32  # least length of SECRET_KEY
SECRET_BYTES = 10_000  # largest size of a secret in a file
MB = 1_000_000

# Secrets that NAME_FILE may read from a file, as Docker, Kubernetes and vaults mount them.
IN_FILES = (
    "SECRET_KEY", "DATABASE_URL", "REDIS_URL", "HEADROOM_SMTP", "HEADROOM_OIDC_CLIENT_SECRET",
    "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN",
)  # fmt: skip
# Secrets of live sources begin with this. Operators choose the rest of the name.
OF_SOURCES = "HEADROOM_SOURCE_"

# Every variable of this product that begins with HEADROOM_. A misspelt name is not in the list.
# docs/operations.md explains each; a test compares the two.
NAMES = (
    "HEADROOM_ADVISORIES", "HEADROOM_ALLOWED_HOSTS", "HEADROOM_API_REQUESTS", "HEADROOM_ARRAYS",
    "HEADROOM_ARRAYS_REGION", "HEADROOM_ARRAYS_URL", "HEADROOM_BIND", "HEADROOM_CACHE_BYTES",
    "HEADROOM_CONTRACT_EXAMPLES", "HEADROOM_CSRF_ORIGINS", "HEADROOM_DATA_DIR", "HEADROOM_DEBUG",
    "HEADROOM_HTTPS", "HEADROOM_KEEP_RUNS_DAYS", "HEADROOM_KEEP_TRACES_DAYS", "HEADROOM_LOG",
    "HEADROOM_LOG_LEVEL", "HEADROOM_MAIL_DOMAINS", "HEADROOM_MAIL_FROM",
    "HEADROOM_MAX_PERSON_BYTES", "HEADROOM_MAX_RUN_MB", "HEADROOM_MAX_RUN_SECONDS",
    "HEADROOM_MAX_UPLOAD_BYTES", "HEADROOM_MAX_WAITING_RUNS", "HEADROOM_MAX_WORKSPACE_BYTES",
    "HEADROOM_OIDC_CLAIM", "HEADROOM_OIDC_CLIENT_ID", "HEADROOM_OIDC_CLIENT_SECRET",
    "HEADROOM_OIDC_GROUPS", "HEADROOM_OIDC_HOSTS", "HEADROOM_OIDC_ISSUER", "HEADROOM_OIDC_LABEL",
    "HEADROOM_OIDC_SECOND_FACTOR", "HEADROOM_POLICIES", "HEADROOM_PORT", "HEADROOM_PYTHON",
    "HEADROOM_METRICS_OPEN", "HEADROOM_REQUIRE_SECOND_FACTOR", "HEADROOM_SESSION_HOURS",
    "HEADROOM_SMTP", "HEADROOM_SOURCES", "HEADROOM_SOURCES_CA", "HEADROOM_SOURCE_FOLDERS",
    "HEADROOM_STATIC_DIR", "HEADROOM_URL", "HEADROOM_WEBHOOKS", "HEADROOM_WEB_MEMORY",
    "HEADROOM_WORKER_CONCURRENCY", "HEADROOM_WORKER_ENDED", "HEADROOM_WORKER_ID",
    "HEADROOM_WORKER_MEMORY", "HEADROOM_WORKER_READY", "HEADROOM_WORKSPACE",
)  # fmt: skip
PREFIX = "HEADROOM_"
TESTS = "HEADROOM_TEST_"
# Kubernetes gives each pod such variables for every service of its namespace, and a service may be
# called headroom or headroom-web.
KUBERNETES = re.compile(r".*_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)")

CGROUP_LIMITS = (  # cgroup v2 and v1
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
POSTGRESQL, SQLITE = "django.db.backends.postgresql", "django.db.backends.sqlite3"


def check_names() -> None:
    """Raise ImproperlyConfigured for a misspelt HEADROOM_ variable; warn of other unknown ones."""
    known = {*NAMES, *(f"{name}_FILE" for name in IN_FILES)}
    # Compared without the prefix, which would make all names similar.
    by_short_name = {setting.removeprefix(PREFIX): setting for setting in known}
    for name in sorted(os.environ):
        if not name.startswith(PREFIX) or name in known:
            continue
        if name.startswith((OF_SOURCES, TESTS)) or KUBERNETES.fullmatch(name):
            continue
        similar = get_close_matches(name.removeprefix(PREFIX), by_short_name, n=1, cutoff=0.85)
        if similar:
            raise ImproperlyConfigured(
                f"{name} is not a setting. Rename it to {by_short_name[similar[0]]}, or remove it."
            )
        sys.stderr.write(f"Warning: {name} is not a setting of this version and has no effect.\n")


def read_secret_files() -> None:
    """For each secret NAME_FILE in the environment, set NAME to the content of that file.

    NAME_FILE is removed, since processes that this one starts inherit NAME.
    """
    for variable in [name for name in os.environ if name.endswith("_FILE")]:
        name = variable.removesuffix("_FILE")
        is_secret = name in IN_FILES or name.startswith(OF_SOURCES)
        path = os.environ[variable].strip()
        if not is_secret or not path:
            continue
        if os.environ.get(name):
            raise ImproperlyConfigured(
                f"{name} and {variable} are both set. Leave one of them out."
            )
        os.environ[name] = _secret_in(Path(path), variable)
        del os.environ[variable]


def _secret_in(path: Path, variable: str) -> str:
    """Return the secret in a file that ``variable`` names; raise ImproperlyConfigured if none."""
    try:
        with path.open("rb") as file:
            secret = file.read(SECRET_BYTES + 1).decode().strip()
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or "it is not text"
        raise ImproperlyConfigured(
            f"{variable} is {path}, which cannot be read ({reason}). Mount the secret there, "
            "readable by the user that Headroom runs as."
        ) from None
    if not secret or len(secret) > SECRET_BYTES:
        raise ImproperlyConfigured(
            f"{variable} is {path}, which holds no secret of 1 to {SECRET_BYTES:,} bytes."
        )
    return secret


def certificates(variable: str) -> str:
    """Return the path of a file of certificates (PEM), or "" if the variable is not set."""
    path = os.environ.get(variable, "").strip()
    if not path:
        return ""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except (ssl.SSLError, ValueError):
        reason = "it holds no certificate"
    except OSError as problem:
        reason = problem.strerror or str(problem)
    else:
        return path
    raise ImproperlyConfigured(
        f"{variable} is {path[:200]!r}, which cannot be used ({reason}). Give a file of "
        "certificates in PEM format."
    )


def folder(setting: str, path: Path, *, must_be_writable: bool = True) -> Path:
    """Return the folder ``path``, created if needed.

    Raises ImproperlyConfigured, which names the ``setting``, if it cannot be used.
    """
    try:
        path = path.resolve()
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if must_be_writable and not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(0, "Not writable")
    except (OSError, ValueError, RuntimeError) as problem:  # RuntimeError: a loop of links
        reason = getattr(problem, "strerror", None) or "not a path"
        raise ImproperlyConfigured(
            f"{setting}: {str(path)[:200]} cannot be used as a folder ({reason}). Choose a folder "
            "that this user may write, or change its owner."
        ) from None
    return path


def database(data_dir: Path) -> dict[str, Any]:
    """Return Django's settings for the database of DATABASE_URL, or SQLite in ``data_dir``."""
    connection_options = {"CONN_MAX_AGE": 600, "CONN_HEALTH_CHECKS": True}
    url = os.environ.get("DATABASE_URL", "").strip()
    if not url:
        path = data_dir / "headroom.sqlite3"
        return {"ENGINE": SQLITE, "NAME": str(path), **connection_options}
    try:
        config: dict[str, Any] = dj_database_url.parse(url) | connection_options
    except ValueError:
        config = {}
    if config.get("ENGINE") not in (POSTGRESQL, SQLITE) or not config.get("NAME"):
        raise ImproperlyConfigured(
            "DATABASE_URL is not the address of a database. Give one such as "
            "postgresql://USER:PASSWORD@HOST:5432/NAME, or leave it out for SQLite."
        )
    sqlite_folder = Path(config["NAME"]).parent
    if config["ENGINE"] == SQLITE and not sqlite_folder.is_dir():
        raise ImproperlyConfigured(
            f"DATABASE_URL: the folder {sqlite_folder} of the SQLite file does not exist. Create "
            "it, or leave DATABASE_URL out."
        )
    return config


def redis_url() -> str:
    """Return REDIS_URL, or "" if it is not set."""
    url = os.environ.get("REDIS_URL", "").strip()
    if url and not _is_redis_url(url):
        raise ImproperlyConfigured(
            "REDIS_URL is not the address of a Redis server. Give one such as "
            "redis://:PASSWORD@HOST:6379/0, or leave it out for a queue in the data folder."
        )
    return url


def _is_redis_url(url: str) -> bool:
    """Return whether ``url`` has the form redis://HOST:PORT/DATABASE."""
    try:
        parts = urlsplit(url)
        is_scheme_known = parts.scheme in ("redis", "rediss")
        is_port_valid = parts.port != 0
    except ValueError:
        return False
    is_path_valid = re.fullmatch(r"/?|/[0-9]{1,4}", parts.path) is not None
    return is_scheme_known and is_port_valid and is_path_valid and is_host(parts.hostname or "")


def compiled_folder(checkout: Path, data_dir: Path) -> Path:
    """Return the folder of the compiled simulator.

    It is ``var/numba`` of the checkout, so that another data folder needs no new compilation. If
    this user does not own ``var`` or may not write to it, the folder is in the data folder.
    """
    var = checkout / "var"
    with suppress(OSError):
        var.mkdir(mode=0o700, exist_ok=True)
    if not var.is_dir() or not os.access(var, os.W_OK | os.X_OK):
        return data_dir / "numba"
    is_owner = var.stat().st_uid == os.geteuid()
    return (var if is_owner else data_dir) / "numba"


def container_mb(limit_files: Sequence[Path] = CGROUP_LIMITS) -> int | None:
    """Return the memory limit of this container in MB; None if it has no limit."""
    limits_mb = []
    for path in limit_files:
        with suppress(OSError, ValueError):  # "max" in the file: no limit
            limits_mb.append(int(path.read_text(encoding="ascii")) // MB)
    lowest_mb = min(limits_mb, default=0)
    is_limit = 0 < lowest_mb < _machine_mb()
    return lowest_mb if is_limit else None


def memory_mb() -> int:
    """Return the memory of this machine, or the limit of its container if that is less, in MB."""
    return container_mb() or _machine_mb()


def _machine_mb() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // MB


def worker_count(concurrency: int) -> int:
    """Return the number of workers of a supervisor.

    They are ``concurrency`` for simulations, and one more for short work.
    """
    return concurrency + 1


def run_memory_mb(total_mb: int, concurrency: int) -> int:
    """Return the memory (MB) that each worker may use for a run: 90% of ``total_mb``, divided."""
    return max(1, total_mb * 9 // 10 // worker_count(concurrency))


def check_production(*, debug: bool, hosts: list[str], secret: str) -> None:
    """Raise ImproperlyConfigured if settings are not safe for an installation that others reach.

    ``hosts`` are HEADROOM_ALLOWED_HOSTS, and ``secret`` is SECRET_KEY.
    """
    if len(secret) < SECRET_CHARACTERS:
        raise ImproperlyConfigured(
            f"SECRET_KEY has {len(secret)} characters, which can be guessed. Give at least "
            f"{SECRET_CHARACTERS} random ones, such as of `openssl rand -hex 32`, or none to have "
            "one made."
        )
    if "*" in hosts:
        raise ImproperlyConfigured(
            "HEADROOM_ALLOWED_HOSTS is *, by which links can be led elsewhere. Name the hosts that "
            "people use."
        )
    if debug and hosts:
        raise ImproperlyConfigured(
            "HEADROOM_DEBUG=1 shows the program's insides, and HEADROOM_ALLOWED_HOSTS has others "
            "see them. Leave one of the two out."
        )


SMTP_PORTS = {"smtp": 25, "smtp+tls": 587, "smtps": 465}


def smtp_server(address: str, *, site: str) -> dict[str, Any]:
    """Return Django's settings of a mail server ``smtp+tls://USER:PASSWORD@HOST:PORT``, by name.

    Mails contain links, so ``site``, the address of this site, must be set.
    """
    try:
        parts = urlsplit(address)
        port = parts.port or SMTP_PORTS.get(parts.scheme)
    except ValueError:
        port = None
    if not port or not is_host(parts.hostname or ""):
        raise ImproperlyConfigured(
            "HEADROOM_SMTP is not the address of a mail server. Give one such as "
            "smtp+tls://user:password@mail.example.com:587."
        )
    if not site:
        raise ImproperlyConfigured(
            "HEADROOM_SMTP is set and HEADROOM_URL is not. Give the address that people use, such "
            "as https://headroom.example.com, for the links in mails."
        )
    return {
        "EMAIL_HOST": parts.hostname,
        "EMAIL_PORT": port,
        "EMAIL_HOST_USER": unquote(parts.username or ""),
        "EMAIL_HOST_PASSWORD": unquote(parts.password or ""),
        "EMAIL_USE_TLS": parts.scheme == "smtp+tls",
        "EMAIL_USE_SSL": parts.scheme == "smtps",
        "EMAIL_TIMEOUT": 10,  # s
    }


def secret_key(data_dir: Path) -> str:
    """Return SECRET_KEY of the environment, else a key that is generated once in ``data_dir``.

    Machines that serve one database need the same SECRET_KEY.
    """
    key = os.environ.get("SECRET_KEY", "")
    if key:
        return key
    path = data_dir / "secret-key.txt"
    try:
        return stored_secret(path, random_bytes=48)
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or "it is not text"
        raise ImproperlyConfigured(
            f"{path} cannot be used ({reason}). Let this user read it, or set SECRET_KEY."
        ) from None


def stored_secret(path: Path, *, random_bytes: int) -> str:
    """Return the secret in ``path``, generated on first use, readable by its owner only."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f"{path.name}.{os.getpid()}")
        only_for_owner = 0o600
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, only_for_owner)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_urlsafe(random_bytes))
        try:
            # Unlike rename(), link() never replaces a file that another process just made.
            with suppress(FileExistsError):
                os.link(draft, path)
        finally:
            draft.unlink()
    return path.read_text(encoding="ascii").strip()
