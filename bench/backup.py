"""Whether a backup gives back every row: a row in every table, every Unicode block in every text.

    python -m bench.backup [--json]

Three ways: SQLite to SQLite, PostgreSQL to PostgreSQL, SQLite to PostgreSQL. Each database is made
by the product's migrations, in a process of its own; PostgreSQL is a server of the bench's own.
What was written is compared with what was restored, value by value, by other means than those by
which `backup` checks itself.

- ``rows_lost``: rows missing or different after the restore, over the three ways; ``rows_lost_...``
  for each way. Sessions are not in a backup.
- ``rows``, ``tables``: written by each backup.
- ``text_columns``: columns of text that hold every block before and after;
  ``text_columns_incomplete``: those that do not, on any way.
- ``digests_differ``: tables whose digest in the backup's manifest is not that of what was restored.
"""

import argparse
import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg

from tests.services import postgresql
from tests.unicode_blocks import ALPHABET

ROOT = Path(__file__).parents[1]
OURS = ("HEADROOM_", "DATABASE_URL", "REDIS_URL", "SECRET_KEY", "DJANGO_")
Ways = Mapping[str, tuple[str, str]]  # name: where from, where to
WAYS = {
    "sqlite": ("sqlite", "sqlite"),
    "postgresql": ("postgresql", "postgresql"),
    "sqlite_to_postgresql": ("sqlite", "postgresql"),
}
BACKUP, KEPT = "all.tar.zst", "kept.pickle"
Rows = dict[str, dict[Any, dict[str, Any]]]  # by table and key


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--in-process", nargs=2, metavar=("STEP", "FOLDER"), help="for itself")
    args = parser.parse_args()
    if args.in_process:
        step, folder = args.in_process
        {"make": make, "take": take}[step](Path(folder))
        return
    figures = measure()
    if args.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:36} {value:8}")


def measure(ways: Ways = WAYS) -> dict[str, int]:
    with tempfile.TemporaryDirectory(prefix="headroom-backup-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # PostgreSQL's user must get through
        with postgresql(folder / "server") as url, ThreadPoolExecutor(2) as pool:
            sources, targets = sorted({one for one, _ in ways.values()}), list(ways)
            for place in [f"from_{kind}" for kind in sources] + [f"to_{way}" for way in targets]:
                (folder / place).mkdir()
            urls = {"sqlite": None, "postgresql": url}
            list(pool.map(lambda kind: _step("make", folder, f"from_{kind}", urls[kind]), sources))
            for way in targets:
                origin, backup = folder / f"from_{ways[way][0]}", folder / f"to_{way}"
                (backup / BACKUP).write_bytes((origin / BACKUP).read_bytes())
            ends = [(f"to_{way}", urls[ways[way][1]]) for way in targets]
            list(pool.map(lambda end: _step("take", folder, *end), ends))
        return _figures(folder, ways)


def _step(step: str, folder: Path, place: str, url: str | None) -> None:
    """Run one step with a new installation, in a process of its own."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    environment["HEADROOM_DATA_DIR"] = str(folder / place / "data")
    if url is not None:
        with psycopg.connect(urlsplit(url)._replace(path="/postgres").geturl()) as server:
            server.autocommit = True
            server.execute(f"CREATE DATABASE {place}")
        environment["DATABASE_URL"] = urlsplit(url)._replace(path=f"/{place}").geturl()
    print(f"{step}: {place}", file=sys.stderr)
    command = [sys.executable, "-m", "bench.backup", "--in-process", step, str(folder / place)]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=sys.stderr)


def make(folder: Path) -> None:
    """Fill a new installation, back it up, and keep its rows as values."""
    _set_up_database()
    from planner.services.backups import backup
    from tests.planner.full_database import fill

    fill(ALPHABET)
    backup(folder / BACKUP)
    _keep(folder)


def take(folder: Path) -> None:
    """Restore into a new installation, and keep its rows as values."""
    _set_up_database()
    from planner.services.backups import restore

    restore(folder / BACKUP, replace=True)  # migrations made a workspace
    _keep(folder)


def _set_up_database() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "planner.config.settings")
    import django

    django.setup()
    from django.core.management import call_command

    call_command("migrate", verbosity=0, skip_checks=True)


def _keep(folder: Path) -> None:
    """Write every value of every row, but for the record that the restore itself added."""
    from planner.models import AuditHead, AuditRecord
    from planner.services.row_documents import RowDigest, all_rows, document_of
    from tests.planner.full_database import text_columns

    restored = AuditRecord.objects.filter(action="backup.restored").count()
    rows: Rows = defaultdict(dict)
    tally = RowDigest()
    for row in all_rows():
        if isinstance(row, AuditRecord) and row.action == "backup.restored":
            continue
        if isinstance(row, AuditHead) and row.pk == 1:
            row.number -= restored
        values = {
            column.attname: getattr(row, column.attname) for column in row._meta.concrete_fields
        }
        for name, value in values.items():
            values[name] = bytes(value) if isinstance(value, memoryview) else value
        for many in row._meta.many_to_many:
            values[many.name] = {other.pk for other in getattr(row, many.name).all()}
        rows[row._meta.label_lower][row.pk] = values
        tally.add(document_of(row))
    texts = [(model._meta.label_lower, column.attname) for model, column in text_columns()]
    kept = {"rows": dict(rows), "digests": tally.tables(), "text_columns": texts}
    (folder / KEPT).write_bytes(pickle.dumps(kept))


def _figures(folder: Path, ways: Ways) -> dict[str, int]:
    figures: dict[str, int] = {"rows": 0, "tables": 0, "rows_lost": 0, "digests_differ": 0}
    columns, incomplete = set(), set()
    for way, (kind, _) in ways.items():
        before = pickle.loads((folder / f"from_{kind}" / KEPT).read_bytes())
        after = pickle.loads((folder / f"to_{way}" / KEPT).read_bytes())
        lost = [
            f"{table} {key}"
            for table, rows in before["rows"].items()
            for key, values in rows.items()
            if after["rows"].get(table, {}).get(key) != values
        ]
        print(f"{way}: lost {lost[:10]}", file=sys.stderr)
        figures[f"rows_lost_{way}"] = len(lost)
        figures["rows_lost"] += len(lost)
        figures["rows"] = sum(map(len, before["rows"].values()))
        figures["tables"] = len(before["rows"])
        figures["digests_differ"] += sum(
            after["digests"].get(table) != digest for table, digest in before["digests"].items()
        )
        for kept in (before, after):
            columns |= set(kept["text_columns"])
            incomplete |= {c for c in kept["text_columns"] if not _holds_all(kept["rows"], *c)}
    figures["text_columns"] = len(columns - incomplete)
    figures["text_columns_incomplete"] = len(incomplete)
    return figures


def _holds_all(rows: Rows, table: str, column: str) -> bool:
    found: set[str] = set()
    for row in rows.get(table, {}).values():
        found |= _characters(row[column])
    return found >= set(ALPHABET)


def _characters(value: Any) -> set[str]:
    if isinstance(value, dict):
        return set().union(*value, *map(_characters, value.values()))
    if isinstance(value, list):
        return set().union(*map(_characters, value))
    return set(value) if isinstance(value, str) else set()


if __name__ == "__main__":
    main()
