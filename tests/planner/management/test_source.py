"""bin/manage source: a folder read by hand, and the law that a plan of it is that of its file."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.planner.management.calling import answer, command, write

pytestmark = pytest.mark.django_db


def test_a_plan_of_a_live_source_is_that_of_its_file(folder: Path, settings: Any) -> None:
    settings.HEADROOM_SOURCE_FOLDERS = [str(folder)]
    inbox = folder / "inbox"
    inbox.mkdir()
    (inbox / "demand.csv").write_text((folder / "demand.csv").read_text())
    os.utime(inbox / "demand.csv", (time.time() - 60,) * 2)
    assert answer("source", "preview", "--path", inbox)["files"] == ["demand.csv"]
    made = answer("source", "add", "live", "--path", inbox, "--bin", "60", "--set", "region=east")
    assert (made["kind"], made["state"], made["trace"]) == ("folder", "new", None)
    read = answer("source", "read", "live")
    assert (read["state"], read["bins"], read["gaps"], read["trace"]) == ("read", 60, 0, "live")
    path = write(folder, "file: demand.csv", "trace: live")
    keys = ("decisions", "objective", "totals")
    of_file, of_source = (answer("plan", scenario) for scenario in (folder / "plan.yml", path))
    assert [of_source[key] for key in keys] == [of_file[key] for key in keys]
    frozen = answer("source", "trace", "live", "--until", "2024-05-13T00:30Z")
    assert frozen == {
        "trace": "live-20240513t0030z",
        "requests": sum(300 + 10 * m - 20 * (m % 2) for m in range(30)),
    }
    code, out, _ = command("source", "list")
    assert code == 0 and "live" in out and "2024-05-13" in out
    for words, says in (
        (("add",), "name a source"),
        (("read", "none"), "There is no source 'none'. Known: live."),
        (("add", "x", "--path", "/etc"), "HEADROOM_SOURCE_FOLDERS"),
        (("add", "x", "--set", "nothing"), "write KEY=VALUE"),
        (("trace", "live", "--until", "soon"), "write a moment"),
    ):
        code, _, err = command("source", *words)
        assert code == 2 and says in err
    assert answer("source", "pause", "live")["state"] == "paused"
    assert command("source", "read", "live")[0] == 2
    assert answer("source", "remove", "live") == {"source": "live", "removed": True}
