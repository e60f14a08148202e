"""Backups by command: from one installation to another, of either database."""

import json
from pathlib import Path

from bench.backup import WAYS, measure
from planner.config.supervisor import only_one
from tests.platform.conftest import manage

TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.5,100,10\n"


def test_from_one_folder_to_another(
    embedded: dict[str, str], another: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text(TRACE)
    assert manage(embedded, "ingest", str(tmp_path / "a.csv")).returncode == 0
    data, file = Path(embedded["HEADROOM_DATA_DIR"]), tmp_path / "all.tar.zst"
    made = json.loads(manage(embedded, "backup", str(file), "--json").stdout)
    assert (made["path"], made["bytes"]) == (str(file), file.stat().st_size)

    empty = Path(another["HEADROOM_DATA_DIR"])
    with only_one(empty):
        refused = manage(another, "restore", str(file))
    assert refused.returncode == 2
    assert "Stop it" in refused.stderr
    back = json.loads(manage(another, "restore", str(file), "--json").stdout)
    assert (back["path"], back["rows"], back["bytes"]) == (str(file), made["rows"], made["bytes"])
    assert (back["left_out"], back["replaced"], made["checked_in"]) == ({}, 0, "sqlite")
    stores = [path.name for path in (empty / "traces").iterdir()]
    assert stores == [path.name for path in (data / "traces").iterdir()]


PLANT = """
from planner.models import User
user = User.objects.create(username="eve")
User.objects.update(first_name=chr(0))  # as a version before could store it
"""


def test_every_row_survives() -> None:
    """A row in every table, every Unicode block in every column of text.

    Both databases take part. ``bin/bench backup`` measures the other ways.
    """
    ways = {name: way for name, way in WAYS.items() if way == ("sqlite", "postgresql")}
    figures = measure(ways)
    assert {figures[f"rows_lost_{name}"] for name in ways} == {0} == {figures["rows_lost"]}
    assert (figures["digests_differ"], figures["text_columns_incomplete"]) == (0, 0)
    assert figures["tables"] > 25 and figures["text_columns"] > 100


def test_what_cannot_be_restored_is_one_sentence_and_changes_nothing(
    another: dict[str, str], new_database: str, tmp_path: Path
) -> None:
    """PostgreSQL stores no U+0000; its role here may not create a scratch database either."""
    assert manage(another, "shell", "-v0", "-c", PLANT).returncode == 0
    file = tmp_path / "all.tar.zst"
    made = json.loads(manage(another, "backup", str(file), "--json").stdout)
    team = another | {"DATABASE_URL": new_database, "HEADROOM_DATA_DIR": str(tmp_path / "team")}
    (tmp_path / "team" / "traces" / "1").mkdir(parents=True)
    assert manage(team, "migrate", "--verbosity=0", "--skip-checks").returncode == 0

    refused = manage(team, "restore", str(file))
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "planner.user 1, column first_name" in refused.stderr
    assert "U+0000" in refused.stderr and "--replace-characters" in refused.stderr
    assert "Traceback" not in refused.stderr and refused.stderr.count("\n") == 1
    assert (tmp_path / "team" / "traces" / "1").is_dir()  # arrays are as they were

    back = manage(team, "restore", str(file), "--replace-characters", "--json")
    assert json.loads(back.stdout)["rows"] == made["rows"], back.stderr
    assert json.loads(back.stdout)["replaced"] == 1
    again = json.loads(manage(team, "backup", str(tmp_path / "again.tar.zst"), "--json").stdout)
    assert again["checked_in"] == "sqlite"
