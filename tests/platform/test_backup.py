"""A backup of one SQLite installation restored into another, empty one, by command."""

from __future__ import annotations

import json
from pathlib import Path

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
    assert "stop that one" in refused.stderr
    back = json.loads(manage(another, "restore", str(file), "--json").stdout)
    assert back == made
    stores = [path.name for path in (empty / "traces").iterdir()]
    assert stores == [path.name for path in (data / "traces").iterdir()]
