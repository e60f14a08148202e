"""Two processes that take in the same file at the same moment, in one data directory."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.platform.conftest import ROOT, manage

ROWS = 400_000  # a second's reading: longer than two starts lie apart
ASK = "from planner.models import AuditRecord, Trace; "
ASK += "from planner.models.workspace import MAIN, use_workspace\n"
ASK += "with use_workspace(MAIN): print(Trace.objects.count(), "
ASK += "AuditRecord.objects.filter(action='trace.read').count())"


def test_it_is_read_once_and_both_have_it(another: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "requests.csv"
    rows = "".join(f"{second / 10:.1f},100,10\n" for second in range(ROWS))
    path.write_text("timestamp,input_tokens,output_tokens\n" + rows)
    command = [sys.executable, "manage.py", "ingest", str(path), "--json"]
    both = [
        subprocess.Popen(
            command,
            env=another,
            cwd=ROOT,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for _ in range(2)
    ]
    printed = [(*process.communicate(timeout=300), process.returncode) for process in both]
    assert [(error, status) for _, error, status in printed] == [("", 0)] * 2
    answers = [json.loads(answer) for answer, _, _ in printed]
    assert {answer["rows"] for answer in answers} == {ROWS}
    assert len({answer["trace"] for answer in answers}) == 1

    data = Path(another["HEADROOM_DATA_DIR"])
    (store,) = (data / "traces").iterdir()
    names = set(os.listdir(store))
    assert {"meta.json", "requests", "character.json", "character-total.parquet"} <= names
    assert not [name for name in names if "partial" in name]
    assert not list((data / "locks").iterdir())
    assert manage(another, "shell", "--no-imports", "-c", ASK).stdout.split() == ["1", "1"]
