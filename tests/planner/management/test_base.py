"""What no command shows to a user: a traceback of a database that nobody has set up."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import OperationalError
from django.db.migrations.executor import MigrationExecutor

from planner.management.base import wants_colour
from planner.management.commands.user import Command
from planner.version import VERSION

pytestmark = pytest.mark.django_db


def no_table(*_: Any, **__: Any) -> Any:
    raise OperationalError("no such table: planner_user")


def test_a_database_that_is_not_set_up_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`manage.py` on a new folder ended in a traceback."""
    monkeypatch.setattr(Command, "answer", no_table)
    with pytest.raises(OperationalError):  # all is set up: then it is a bug, with its traceback
        call_command("user", "add", "ada", "--role=viewer")
    monkeypatch.setattr(MigrationExecutor, "migration_plan", lambda *_: ["one to come"])
    with pytest.raises(SystemExit) as ended:
        call_command("user", "add", "ada", "--role=viewer")
    assert ended.value.code == 2
    assert "manage.py migrate" in capsys.readouterr().err


def test_the_version_is_the_product_s_and_not_django_s(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        Command().create_parser("manage.py", "user").parse_args(["--version"])
    assert capsys.readouterr().out == f"Headroom {VERSION}\n"
    done = subprocess.run(
        [sys.executable, "manage.py", "--version"],
        cwd=Path(__file__).parents[3], capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == f"Headroom {VERSION}\n"


def test_colour_is_for_terminals_whose_users_want_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    main, side = os.openpty()
    with open(main), open(side, "w") as terminal, (tmp_path / "out").open("w") as file:
        assert wants_colour(terminal)
        assert not wants_colour(file)
        monkeypatch.setenv("NO_COLOR", "1")
        assert not wants_colour(terminal)
