"""A database that is newer or older than this version can use is refused at every start."""

import sqlite3
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from django.core.management import get_commands
from django.db import connection, migrations
from django.test import Client

from planner.command_line import ALIASES, WITHOUT_DATABASE, Utility
from planner.config import startup_checks
from tests.platform.conftest import ROOT, manage

LATER = "9999_of_a_later_version"
RECORD = "INSERT INTO django_migrations (app, name, applied) VALUES ('planner', %s, '2030-01-01')"


@pytest.fixture
def newer(another: dict[str, str]) -> dict[str, str]:
    """An installation that a later version has migrated."""
    with sqlite3.connect(Path(another["HEADROOM_DATA_DIR"]) / "headroom.sqlite3") as database:
        database.execute(RECORD.replace("%s", "?"), [LATER])
    return another


@pytest.fixture
def older(another: dict[str, str]) -> dict[str, str]:
    """An installation that has some, not all, of the migrations that a later one replaced."""
    with sqlite3.connect(Path(another["HEADROOM_DATA_DIR"]) / "headroom.sqlite3") as database:
        database.execute("DELETE FROM django_migrations WHERE app = 'planner' AND name > '0040'")
    return another


def content(file: Path) -> list[str]:
    with sqlite3.connect(file) as database:
        return list(database.iterdump())


@pytest.fixture
def later_migration(db: None) -> None:
    with connection.cursor() as cursor:
        cursor.execute(RECORD, [LATER])


@pytest.mark.parametrize(
    "command",
    [
        ["manage.py", "migrate"],
        ["-m", "celery", "--quiet", "--app=planner.config.celery", "worker"],
        ["-m", "celery", "--quiet", "--app=planner.config.celery", "beat"],
        ["-m", "gunicorn", "planner.config.wsgi", "--config=python:planner.config.web_workers",
         "--bind=127.0.0.1:0", "--preload", "--no-control-socket"],
    ],
    ids=lambda command: "-".join(command[1::3]),
)  # fmt: skip
def test_every_start_refuses_a_newer_database(newer: dict[str, str], command: list[str]) -> None:
    refuse(newer, command, LATER)


def test_a_start_refuses_an_older_database(older: dict[str, str]) -> None:
    """By the same check as a newer one."""
    refuse(older, ["manage.py", "migrate"], "0041_attempts_without_account_news")


def test_every_command_that_asks_the_database_refuses_a_newer_one(later_migration: None) -> None:
    commands = Utility(["manage.py"])
    for name in (*get_commands(), *ALIASES):
        if name in WITHOUT_DATABASE:
            commands.fetch_command(name)
            continue
        with pytest.raises(startup_checks.UnfitDatabase, match=LATER):
            commands.fetch_command(name)


def refuse(environment: dict[str, str], command: list[str], migration: str) -> None:
    file = Path(environment["HEADROOM_DATA_DIR"]) / "headroom.sqlite3"
    before = content(file)
    done = subprocess.run(
        [sys.executable, *command],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 2, done.stderr
    lines = [line for line in done.stderr.splitlines() if line]
    assert len(lines) == 1 and migration in lines[0] and str(file) in lines[0], done.stderr
    assert content(file) == before


def test_set_up_refuses_before_it_migrates(newer: dict[str, str]) -> None:
    (Path(newer["HEADROOM_DATA_DIR"]) / "migrate.stamp").unlink(missing_ok=True)
    done = subprocess.run(
        [ROOT / ".venv/bin/python", "bin/setup.py", "manage"], env=newer, cwd=ROOT,
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 2 and LATER in done.stderr.splitlines()[-1], done.stderr
    assert not (Path(newer["HEADROOM_DATA_DIR"]) / "migrate.stamp").exists()


def test_a_database_that_is_not_there_is_no_newer_one(
    another: dict[str, str], tmp_path: Path
) -> None:
    """Nothing is made by looking, and a server that is down is for the command to tell of."""
    fresh = another | {"HEADROOM_DATA_DIR": str(tmp_path / "fresh")}
    assert manage(fresh, "collectstatic", "--help").returncode == 0
    assert not (tmp_path / "fresh" / "headroom.sqlite3").exists()
    down = another | {"DATABASE_URL": "postgresql://nobody@127.0.0.1:9/none"}
    assert manage(down, "diffsettings").returncode == 0


def test_what_a_squashed_migration_replaces_is_known(
    later_migration: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert startup_checks.unknown_migrations() == [LATER]
    squashed = ModuleType("planner.migrations.0001_squashed")
    squashed.Migration = type(  # type: ignore[attr-defined]
        "Migration", (migrations.Migration,), {"replaces": [("planner", LATER)]}
    )
    here = startup_checks.iter_modules

    class Listed:
        name = "0001_squashed"

    monkeypatch.setitem(sys.modules, squashed.__name__, squashed)
    monkeypatch.setattr(startup_checks, "iter_modules", lambda path: [*here(path), Listed()])
    assert startup_checks.unknown_migrations() == []


def test_another_apps_migrations_are_not_ours(db: None) -> None:
    with connection.cursor() as cursor:
        cursor.execute(RECORD.replace("'planner'", "'gone'"), [LATER])
    assert startup_checks.unknown_migrations() == []
    startup_checks.check_migrations()


def test_readyz_names_a_newer_version(
    later_migration: None, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """503 where the process never saw a database that it knows; one that started before an upgrade
    serves until it is replaced."""
    monkeypatch.setattr(startup_checks, "knew_all_migrations", False)
    answer = client.get("/readyz")
    assert answer.status_code == 503
    assert "newer version" in answer.json()["database"]
    with pytest.raises(startup_checks.UnfitDatabase, match=LATER):
        startup_checks.check_migrations()
    monkeypatch.setattr(startup_checks, "knew_all_migrations", True)
    answer = client.get("/readyz")
    assert answer.status_code == 200
    assert "newer version" in answer.json()["database"]


def test_an_interrupted_command_ends_without_traceback(capsys):
    with pytest.raises(SystemExit) as end, startup_checks.exit_with_sentence():
        raise KeyboardInterrupt
    assert end.value.code == 130  # as shells write an end by Ctrl-C
    assert "Traceback" not in capsys.readouterr().err
