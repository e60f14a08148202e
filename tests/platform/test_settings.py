"""What the environment decides."""

import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from planner.config.cache import DiskCache
from planner.config.environment import (
    check_production,
    compiled_folder,
    read_secret_files,
    secret_key,
)
from planner.setting_checks import env_bool, env_int, env_list
from tests.platform.conftest import ROOT, load


def test_production_does_not_start_with_debugging() -> None:
    good: dict[str, Any] = {"debug": False, "hosts": ["headroom.example"], "secret": "x" * 50}
    check_production(**good)
    with pytest.raises(ImproperlyConfigured):
        check_production(**good | {"debug": True})


def test_secrets_may_lie_in_files(embedded: dict[str, str], tmp_path: Path) -> None:
    """As a vault or Kubernetes mounts them; live sources' too, and for processes started later."""
    held = {
        "SECRET_KEY": "k" * 40,
        "DATABASE_URL": f"sqlite:///{tmp_path}/of-a-file.sqlite3",
        "HEADROOM_SMTP": "smtp://u:p%40@mail.example:25",
        "HEADROOM_SOURCE_TOKEN": "t0ken",
    }
    named = {}
    for name, secret in held.items():
        (tmp_path / name).write_text(f"{secret}\n")
        named[f"{name}_FILE"] = str(tmp_path / name)
    environment = {name: text for name, text in embedded.items() if name not in held}
    environment |= named | {"HEADROOM_URL": "https://headroom.example"}
    script = (
        "import os, planner.config.settings as s; print(s.SECRET_KEY, "
        "s.DATABASES['default']['NAME'], s.EMAIL_HOST_PASSWORD, "
        "os.environ['HEADROOM_SOURCE_TOKEN'], sep='\\n')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, cwd=ROOT, capture_output=True, text=True
    )
    database = f"{tmp_path}/of-a-file.sqlite3"
    assert done.stdout.split() == [held["SECRET_KEY"], database, "p@", "t0ken"], done.stderr


def test_no_process_writes_what_its_memory_held() -> None:
    assert resource.getrlimit(resource.RLIMIT_CORE) == (0, 0)  # these settings are in use here too


@pytest.mark.parametrize(
    ("content", "also", "words"),
    [
        (None, "", "cannot be read .No such file"),
        (b"\xff\xfe", "", "HEADROOM_SMTP_FILE"),
        (b" \n", "", "holds no secret"),
        (b"x" * 10_001, "", "holds no secret"),
        (b"right", "another", "both set"),
    ],
)
def test_a_file_without_a_secret_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes | None, also: str, words: str
) -> None:
    path = tmp_path / "smtp"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setenv("HEADROOM_SMTP_FILE", str(path))
    monkeypatch.setenv("HEADROOM_SMTP", also)
    with pytest.raises(ImproperlyConfigured, match=words):
        read_secret_files()


def test_a_cache_goes_on_when_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counting log-in attempts answered 500 to everybody."""
    cache = DiskCache(str(tmp_path), {})
    cache.set("tries", 1, 60)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("tempfile.mkstemp", full)
        cache.set("tries", 2, 60)
        assert cache.get("tries") == 2
    cache.set("tries", 3, 60)
    assert cache.get("tries") == 3
    assert DiskCache(str(tmp_path), {}).get("tries") == 3


def test_without_a_server_everything_lies_in_the_data_directory(
    plain: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder, settings = tmp_path / "data", load()
    database = settings["DATABASES"]["default"]
    assert database["ENGINE"] == "django.db.backends.sqlite3"
    assert database["NAME"] == f"{folder}/headroom.sqlite3"
    assert database["OPTIONS"]["transaction_mode"] == "IMMEDIATE"
    assert settings.get("CELERY_BROKER_URL") is None
    assert settings["CELERY_BROKER_TRANSPORT_OPTIONS"]["folder"] == str(folder / "queue")
    assert settings["DEBUG"] is False


def test_servers_are_taken_from_their_urls(plain: pytest.MonkeyPatch) -> None:
    plain.setenv("DATABASE_URL", "postgresql://who:se%2Fcret@db.example:5433/plans")
    plain.setenv("REDIS_URL", "redis://queue.example:6380/2")
    settings = load()
    database = settings["DATABASES"]["default"]
    assert database["ENGINE"] == "django.db.backends.postgresql"
    address = [database[key] for key in ("USER", "PASSWORD", "HOST", "PORT", "NAME")]
    assert address == ["who", "se/cret", "db.example", 5433, "plans"]
    assert "transaction_mode" not in database.get("OPTIONS", {})
    assert settings["CELERY_BROKER_URL"] == "redis://queue.example:6380/2"
    assert settings.get("CELERY_BROKER_TRANSPORT") is None


def test_https_makes_cookies_secure(plain: pytest.MonkeyPatch) -> None:
    names = ("SESSION_COOKIE_SECURE", "CSRF_COOKIE_SECURE", "SECURE_SSL_REDIRECT")
    settings = load()
    assert not any(settings.get(name) for name in names)
    plain.setenv("HEADROOM_HTTPS", "1")
    settings = load()
    assert all(settings.get(name) for name in names)


def test_the_secret_is_made_once_for_its_owner_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SECRET_KEY", raising=False)
    first = secret_key(tmp_path)
    assert len(first) >= 50
    assert secret_key(tmp_path) == first
    assert [file.stat().st_mode & 0o777 for file in tmp_path.iterdir()] == [0o600]
    monkeypatch.setenv("SECRET_KEY", "given")
    assert secret_key(tmp_path) == "given"


def test_processes_that_start_at_once_agree_on_the_secret(tmp_path: Path) -> None:
    script = (
        "from pathlib import Path; from planner.config.environment import stored_secret; "
        f"print(stored_secret(Path({str(tmp_path / 'secret')!r}), random_bytes=12))"
    )
    together = [
        subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE)
        for _ in range(4)
    ]
    assert len({process.communicate()[0] for process in together}) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["secret"]


def test_the_compiled_simulator_lies_with_the_code_and_else_with_the_data(tmp_path: Path) -> None:
    """Each new data folder compiled it again, a minute of CPU, beside a checkout that had it."""
    code, data = tmp_path / "code", tmp_path / "data"
    code.mkdir()
    assert compiled_folder(code, data) == code / "var" / "numba"
    assert (code / "var").stat().st_mode & 0o777 == 0o700
    assert compiled_folder(tmp_path / "nowhere", data) == data / "numba"
    unset = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    script = "import os, planner.config.settings; print(os.environ['NUMBA_CACHE_DIR'])"
    done = subprocess.run(
        [sys.executable, "-c", script], env=unset | {"HEADROOM_DATA_DIR": str(data)}, cwd=ROOT,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == str(ROOT / "var" / "numba")


def test_values_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is refused, test_bad_settings.py has for every setting."""
    monkeypatch.setenv("HEADROOM_X", " 12 ")
    assert env_int("HEADROOM_X", 3) == 12
    assert env_int("HEADROOM_NOT_SET", 3) == 3
    for text, value in (("1", True), ("true", True), ("0", False), ("no", False)):
        monkeypatch.setenv("HEADROOM_X", text)
        assert env_bool("HEADROOM_X") is value
    monkeypatch.setenv("HEADROOM_X", "a.example, b.example,")
    assert env_list("HEADROOM_X") == ["a.example", "b.example"]
