"""A bad setting is refused in one sentence, whichever way the product is started."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured

from planner.config.environment import (
    IN_FILES,
    NAMES,
    OF_SOURCES,
    check_names,
    container_mb,
    run_memory_mb,
    worker_count,
)
from tests.platform.conftest import ROOT, load
from tests.platform.documentation import settings

NUMBERS = ("0", "-1", "1.5", "x", "9" * 5000)
BUCKET = {
    "HEADROOM_ARRAYS": "s3://headroom/arrays",
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "hidden",
}
PROVIDER = {
    "HEADROOM_OIDC_ISSUER": "https://id.example",
    "HEADROOM_OIDC_CLIENT_ID": "headroom",
    "HEADROOM_OIDC_CLIENT_SECRET": "hidden",
    "HEADROOM_OIDC_GROUPS": "sre=main:planner",
}
LISTS = ("::bad::", "a b", "https://", "http://h:99999", "good.example,a b")
BAD: dict[str, tuple[str, ...]] = {
    "HEADROOM_DATA_DIR": ("/proc/none", "/dev/null/x"),
    "HEADROOM_STATIC_DIR": ("/proc/none", "/dev/null"),
    "NUMBA_CACHE_DIR": ("/proc/none",),
    "SECRET_KEY": ("short",),
    "DATABASE_URL": (
        "garbage", "mysql://u:hidden@h/db", "postgresql://u:hidden@h", "postgresql://u:hidden@h:x/d",
        "sqlite:////proc/none/db.sqlite3", "://",
    ),
    "REDIS_URL": (
        "garbage", "http://h", "redis://", "redis://:hidden@h:x/0", "redis://h/name", "redis://[",
    ),
    "HEADROOM_ALLOWED_HOSTS": ("https://headroom.example", "a b", "*", "h/x"),
    "HEADROOM_CSRF_ORIGINS": ("headroom.example", "https://h/path", "ftp://h"),
    "HEADROOM_HTTPS": ("perhaps",),
    "HEADROOM_URL": ("headroom.example", "https://", "javascript:x", "https://h:x"),
    "HEADROOM_DEBUG": ("2",),
    "HEADROOM_LOG": ("xml",),
    "HEADROOM_LOG_LEVEL": ("loud",),
    "HEADROOM_SESSION_HOURS": (*NUMBERS, "9999999"),
    "HEADROOM_METRICS_OPEN": ("all",),
    "HEADROOM_REQUIRE_SECOND_FACTOR": ("all",),
    "HEADROOM_API_REQUESTS": NUMBERS,
    "HEADROOM_OIDC_ISSUER": ("garbage", "http://id.example", "https://", "https://h:x"),
    "HEADROOM_OIDC_CLIENT_ID": ("",),
    "HEADROOM_OIDC_CLIENT_SECRET": ("",),
    "HEADROOM_OIDC_GROUPS": ("garbage", "sre=main:king", ""),
    "HEADROOM_OIDC_HOSTS": LISTS,
    "HEADROOM_OIDC_SECOND_FACTOR": ("2",),
    "HEADROOM_SMTP": ("garbage", "smtp://", "smtp://u:hidden@h:x", "smtp://u:hidden@["),
    "HEADROOM_MAIL_FROM": ("nobody", "a@", "@b", "a@b c"),
    "HEADROOM_MAIL_DOMAINS": ("a b", "@example.com", "https://example.com"),
    "HEADROOM_WEBHOOKS": LISTS,
    "HEADROOM_SOURCES": ("garbage", "ftp://h", "https://u:p@h", "https://h/../x", *LISTS),
    "HEADROOM_SOURCE_FOLDERS": ("inbox", "/srv/a,b"),
    "HEADROOM_SOURCES_CA": ("/proc/none", "/dev/null", str(ROOT)),
    "HEADROOM_ARRAYS": ("garbage", "s3://", "s3://a/../b"),
    "HEADROOM_ARRAYS_URL": ("garbage", "ftp://h"),
    "HEADROOM_ARRAYS_REGION": ("us east", "EU/1"),
    "AWS_ACCESS_KEY_ID": ("",),
    "AWS_SECRET_ACCESS_KEY": ("", "schlüssel"),
    "HEADROOM_CACHE_BYTES": NUMBERS,
    "HEADROOM_MAX_UPLOAD_BYTES": NUMBERS,
    "HEADROOM_MAX_WORKSPACE_BYTES": NUMBERS,
    "HEADROOM_MAX_PERSON_BYTES": NUMBERS,
    "HEADROOM_KEEP_RUNS_DAYS": (*NUMBERS, "9999999"),
    "HEADROOM_KEEP_TRACES_DAYS": (*NUMBERS, "9999999"),
    "HEADROOM_WORKER_CONCURRENCY": (*NUMBERS, "9999999"),
    "HEADROOM_MAX_WAITING_RUNS": NUMBERS,
    "HEADROOM_MAX_RUN_SECONDS": NUMBERS,
    "HEADROOM_MAX_RUN_MB": NUMBERS,
    "HEADROOM_POLICIES": ("garbage", "a=b", "a=b:C,a=d:E"),
    "HEADROOM_WORKSPACE": ("a b", "a" * 41),
    "HEADROOM_WORKER_READY": ("/proc/none/ready",),
}  # fmt: skip
# Text that no rule refuses, or that is asked for by name only when a source is read.
ANY_TEXT = {
    "HEADROOM_OIDC_CLAIM",
    "HEADROOM_OIDC_LABEL",
    "AWS_SESSION_TOKEN",
    "NO_COLOR",
    "XDG_DATA_HOME",
    "HEADROOM_SOURCE_...",
}


def test_every_setting_has_a_bad_value_here() -> None:
    read = {name for name, place in settings().items() if place in ("all", "image")}
    assert set(BAD) - {"HEADROOM_DEBUG"} == read - ANY_TEXT


@pytest.mark.parametrize("name", BAD)
def test_a_bad_value_is_one_sentence(plain: pytest.MonkeyPatch, name: str) -> None:
    around = PROVIDER if name in PROVIDER else BUCKET if name in BUCKET else {}
    for value in BAD[name]:
        for other, good in {**around, name: value}.items():
            plain.setenv(other, good)
        with pytest.raises(ImproperlyConfigured) as refused:
            load()
        sentence = str(refused.value)
        assert name in sentence and sentence.endswith("."), (value, sentence)
        assert "\n" not in sentence and len(sentence) < 400, sentence
        assert "hidden" not in sentence, "a secret is told"


def test_good_values_are_taken(plain: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in {
        **BUCKET, **PROVIDER,
        "DATABASE_URL": "postgres://u:p%2F@db.example:5433/plans?sslmode=require",
        "REDIS_URL": "rediss://:p%40@queue.example:6380/2?ssl_cert_reqs=required",
        "HEADROOM_ALLOWED_HOSTS": "headroom.example, .corp.example, 10.0.0.7, [fd00::7]",
        "HEADROOM_CSRF_ORIGINS": "https://headroom.example:8443,https://*.corp.example",
        "HEADROOM_URL": "https://headroom.example/",
        "HEADROOM_LOG_LEVEL": "debug",
        "HEADROOM_OIDC_HOSTS": "keys.example,10.0.0.0/8",
        "HEADROOM_SMTP": "smtp+tls://u:p@mail.example",
        "HEADROOM_MAIL_FROM": "Headroom <headroom@example.com>",
        "HEADROOM_MAIL_DOMAINS": "example.com,corp.example",
        "HEADROOM_WEBHOOKS": "hooks.slack.com, http://chat.example:8065, 10.0.0.0/8, fd00::/8",
        "HEADROOM_SOURCES": "https://prometheus.example:9090,http://[::1]:9090/prometheus",
        "HEADROOM_SOURCE_FOLDERS": "/srv/a, /srv/b",
        "HEADROOM_POLICIES": "queue=my_policy:QueueLength",
        "HEADROOM_WORKER_READY": str(tmp_path / "ready"),
        "HEADROOM_KEEP_RUNS_DAYS": "365",
        "HEADROOM_MAX_RUN_MB": "",
    }.items():  # fmt: skip
        plain.setenv(name, value)
    loaded = load()
    assert loaded["LOGGING"]["root"]["level"] == "DEBUG"
    assert loaded["HEADROOM_URL"] == "https://headroom.example"
    assert loaded["HEADROOM_SOURCE_FOLDERS"] == ["/srv/a", "/srv/b"]
    assert loaded["HEADROOM_KEEP_RUNS_DAYS"] == 365
    assert loaded["DATABASES"]["default"]["PASSWORD"] == "p/"


def test_a_data_folder_may_have_any_name(plain: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Taken through an address, a # or ? in its name led to another file."""
    folder = tmp_path / "50% of #1 ?"
    plain.setenv("HEADROOM_DATA_DIR", str(folder))
    database = load()["DATABASES"]["default"]
    assert database["NAME"] == str(folder / "headroom.sqlite3")


def test_a_misspelt_name_is_refused_and_an_unknown_one_told(
    plain: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for misspelt, meant in (
        ("HEADROOM_MAX_RUN_SECOND", "HEADROOM_MAX_RUN_SECONDS"),
        ("HEADROOM_ALLOWED_HOST", "HEADROOM_ALLOWED_HOSTS"),
        ("HEADROOM_SMPT_FILE", "HEADROOM_SMTP_FILE"),
    ):
        with plain.context() as patch:
            patch.setenv(misspelt, "1")
            with pytest.raises(ImproperlyConfigured, match=f"{misspelt} .*{meant}"):
                check_names()
    for known in (  # of a source, and what Kubernetes sets for services named headroom...
        f"{OF_SOURCES}TOKEN", f"{OF_SOURCES}TOKEN_FILE", "HEADROOM_SMTP_FILE",
        "HEADROOM_WEB_SERVICE_HOST", "HEADROOM_WEB_SERVICE_PORT", "HEADROOM_WEB_SERVICE_PORT_HTTP",
        "HEADROOM_WEB_PORT", "HEADROOM_WEB_PORT_80_TCP", "HEADROOM_WEB_PORT_80_TCP_ADDR",
    ):  # fmt: skip
        plain.setenv(known, "1")
    check_names()
    assert capfd.readouterr().err == ""
    plain.setenv("HEADROOM_OF_A_LATER_VERSION", "1")
    check_names()
    assert "HEADROOM_OF_A_LATER_VERSION" in capfd.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        ["manage.py", "migrate"],  # as every other command
        ["-m", "celery", "--app=planner.config.celery", "worker"],
        ["-m", "celery", "--app=planner.config.celery", "beat"],
        ["-m", "gunicorn", "planner.config.wsgi", "--config=python:planner.config.web_workers",
         "--bind=127.0.0.1:0", "--preload", "--no-control-socket"],
    ],
    ids=lambda command: command[-1] if "gunicorn" not in command else "gunicorn",
)  # fmt: skip
def test_every_way_in_ends_with_the_sentence(embedded: dict[str, str], command: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, *command], env=embedded | {"HEADROOM_LOG_LEVEL": "loud"}, cwd=ROOT,
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1 and "HEADROOM_LOG_LEVEL" in done.stderr


def test_set_up_passes_the_sentence_on(embedded: dict[str, str], tmp_path: Path) -> None:
    """As ``bin/manage`` and ``bin/run`` call it, before anything of the product is imported."""
    (tmp_path / "file").touch()
    for bad in (
        {"HEADROOM_DATA_DIR": str(tmp_path / "file" / "data")},
        {"HEADROOM_DATA_DIR": str(tmp_path / "new"), "HEADROOM_SOURCES": "garbage"},
    ):
        done = subprocess.run(
            [ROOT / ".venv/bin/python", "bin/setup.py", "manage"], env=embedded | bad, cwd=ROOT,
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == 2, done.stderr
        lines = [
            line for line in done.stderr.splitlines() if not line.startswith("Headroom set-up")
        ]
        assert len(lines) == 1 and list(bad)[-1] in lines[0], done.stderr


def test_workers_keep_within_the_limit_of_their_container(tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    limit.write_text("max\n")
    assert container_mb([limit, tmp_path / "none"]) is None
    limit.write_text("1073741824\n")
    assert container_mb([tmp_path / "none", limit]) == 1073
    limit.write_text(f"{2**63 - 4096}\n")  # what version 1 has for none
    assert container_mb([limit]) is None
    assert worker_count(3) * run_memory_mb(8589, 3) <= 8589


SOURCES = ("planner", "simulation", "forecasting", "bin", "manage.py")
OURS = re.compile(
    r"HEADROOM_\w*[A-Z0-9]|AWS_[A-Z_]+|NUMBA_[A-Z_]+|SECRET_KEY|DATABASE_URL|REDIS_URL"
)


def names_in(path: Path) -> Iterator[str]:
    """Names of variables that a file reads: whatever ``os.environ`` is asked for, and every text
    that is a name of ours."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield from re.findall(r"\$\{?(HEADROOM_\w+)", text)
        return
    if not OURS.search(text) and "environ" not in text and "getenv" not in text:
        return
    for node in ast.walk(ast.parse(text)):
        text = node.value if isinstance(node, ast.Constant) else None
        if isinstance(text, str) and OURS.fullmatch(text):
            yield text
        match node:
            case ast.Subscript(ast.Attribute(_, "environ"), ast.Constant(str(name)), ast.Load()):
                yield name
            case ast.Call(
                ast.Attribute(ast.Attribute(_, "environ") | ast.Name("os"), "get" | "getenv"),
                [ast.Constant(str(name)), *_],
            ):
                yield name


def test_every_variable_that_the_code_reads_is_documented() -> None:
    readers: dict[str, Path] = {}
    for source in SOURCES:
        top = ROOT / source
        for path in [top] if top.is_file() else sorted(top.rglob("*")):
            if path.is_file() and (path.suffix == ".py" or path.parent.name == "bin"):
                readers |= dict.fromkeys(names_in(path), path)
    documented = set(settings())
    assert {name: path for name, path in readers.items() if name not in documented} == {}
    assert len(readers) > 40
    ours = {name for name in documented if name.startswith("HEADROOM_") and name[-1] != "."}
    assert set(NAMES) == ours


def test_every_variable_that_a_page_names_is_in_the_table() -> None:
    known = {*settings(), *(f"{name}_FILE" for name in (*IN_FILES, "POSTGRES_PASSWORD"))}
    for page in (*(ROOT / "docs").glob("*.md"), ROOT / "docker/README.md", ROOT / "README.md"):
        named = set(re.findall(r"\bHEADROOM_\w*[A-Z0-9]\b", page.read_text(encoding="utf-8")))
        assert {n for n in named - known if not n.startswith(OF_SOURCES)} == set(), page.name
