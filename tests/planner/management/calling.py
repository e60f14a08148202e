"""Call commands of bin/manage in this process, on a folder with a small scenario."""

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command

from tests.planner.toy import FLEET

SCENARIO = (
    """\
version: 1
name: By hand
"""
    + FLEET
    + """\
traffic:
  sources:
    - file: demand.csv
      model: m
      regions: {east: 1}
      tiers: {chat: 1}
      input_tokens: {mean: 400}
      output_tokens: {mean: 30}
fleet: {startup_s: 60}
policies: [flat-peak, lt-i]
test_days: []
forecast: {method: last-value}
horizon: {period_s: 300, duration_s: 900}
"""
)


def command(*words: Any) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    out, err = StringIO(), StringIO()
    try:
        call_command(*(str(word) for word in words), stdout=out, stderr=err)
    except SystemExit as stop:
        return int(stop.code or 0), out.getvalue(), err.getvalue()
    return 0, out.getvalue(), err.getvalue()


def answer(*words: Any) -> dict[str, Any]:
    code, out, err = command(*words, "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert isinstance(document, dict)
    return document


def problem(*words: Any, code: int = 2) -> str:
    """The sentence of a command that cannot do what it was asked; stdout stays empty."""
    for extra in ((), ("--json",)):
        code_seen, out, err = command(*words, *extra)
        assert (code_seen, out) == (code, ""), err
    assert "Traceback" not in err
    return err.strip()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    # It falls at times before the window: a column that never falls may be a counter.
    dips = [20 * (minute % 2) if minute < 45 else 0 for minute in range(60)]
    rows = [
        f"2024-05-13T00:{minute:02}:00Z,chat,{300 + 10 * minute - dip}"
        for minute, dip in enumerate(dips)
    ]
    (tmp_path / "demand.csv").write_text("time,series,requests\n" + "\n".join(rows) + "\n")
    (tmp_path / "plan.yml").write_text(SCENARIO)
    return tmp_path


def write(folder: Path, old: str, new: str) -> Path:
    assert old in SCENARIO
    path = folder / "other.yml"
    path.write_text(SCENARIO.replace(old, new))
    return path
