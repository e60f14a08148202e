"""What malformed input comes to: hundreds of inputs through command line, REST and forms.

    python -m bench.malformed [--json] [--kind WORDS] [--table FILE.csv]

An input escapes when it is answered by a server error, a traceback, a run that met a bug, or not
within a minute. ``peak_rss_mb`` is the most memory that this process had, bombs included.
"""

import argparse
import json
import logging
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, NoReturn

LIMIT_S = 60


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--kind", default="", help="only inputs whose kind or name has these words")
    parser.add_argument("--table", type=Path, help="write every input with its sentence here")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headroom-malformed-") as folder:
        os.environ["HEADROOM_DATA_DIR"] = folder
        os.environ["HEADROOM_LOG_LEVEL"] = "CRITICAL"
        for name in ("DATABASE_URL", "REDIS_URL"):
            os.environ.pop(name, None)
        rows = measure(args.kind)
    escaped = [row for row in rows if row["escaped"]]
    for row in escaped:
        print(f"escaped: {row['kind']}: {row['name']}: {row['sentence'][:200]}", file=sys.stderr)
    if args.table:
        write_table(args.table, rows)
    slowest = max(rows, key=lambda row: float(row["seconds"]))
    figures = {
        "inputs": len(rows),
        "escapes": len(escaped),
        "by_kind": dict(Counter(row["kind"] for row in rows)),
        "slowest_seconds": round(slowest["seconds"], 2),
        "slowest": f"{slowest['kind']}: {slowest['name']}",
        "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "seconds": round(sum(row["seconds"] for row in rows), 1),
    }
    print(json.dumps(figures | {"table": rows}) if args.json else json.dumps(figures, indent=2))


def measure(words: str) -> list[dict[str, Any]]:
    """Return a row per input: what was sent, the answer, and its seconds."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "planner.config.settings"
    import django
    from django.conf import settings

    django.setup()
    logging.disable(logging.CRITICAL)
    # A manifest of static files is made by collectstatic, which pages need and answers do not.
    settings.STORAGES["staticfiles"]["BACKEND"] = (
        "django.contrib.staticfiles.storage.StaticFilesStorage"
    )
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    from bench.malformed.doors import Doors
    from bench.malformed.inputs import inputs

    doors = Doors()
    signal.signal(signal.SIGALRM, _late)
    rows = []
    try:
        for each in inputs():
            if words.lower() in f"{each.kind}: {each.name}".lower():
                rows.append(_try_input(each, doors))
    finally:
        shutil.rmtree(doors.folder, ignore_errors=True)
    return rows


def _try_input(each: Any, doors: Any) -> dict[str, Any]:
    began = time.perf_counter()
    signal.alarm(LIMIT_S)
    try:
        answer = each.send(doors)
        status, sentence, escaped = answer.status, answer.sentence, answer.escaped
    except TimeoutError:
        status, sentence, escaped = 0, f"no answer within {LIMIT_S} s", True
    except Exception as bug:  # noqa: BLE001 - which is what is looked for
        status, sentence, escaped = 1, f"{type(bug).__name__}: {bug}", True
    finally:
        signal.alarm(0)
    return {
        "kind": each.kind,
        "name": each.name,
        "status": status,
        "sentence": sentence[:300],
        "seconds": time.perf_counter() - began,
        "escaped": escaped,
    }


def _late(*_: object) -> NoReturn:
    raise TimeoutError


def write_table(path: Path, rows: list[dict[str, Any]]) -> None:
    import polars as pl

    path.parent.mkdir(parents=True, exist_ok=True)
    pl.DataFrame(rows).write_csv(path)


if __name__ == "__main__":
    main()
