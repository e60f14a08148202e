"""bin/manage sweep: the law that a cell is the run of its scenario by itself."""

from pathlib import Path

import pytest

from planner.inputs.scenario.document import edit
from tests.planner.management.calling import SCENARIO, answer, command

pytestmark = pytest.mark.django_db


def test_a_cell_is_the_run_by_itself(folder: Path) -> None:
    path = folder / "plan.yml"
    result = answer(
        "sweep", path, "--vary", "regions[east].usd_per_gpu_hour.G=2, 3",
        "--vary", "objective.spare.instances=0,1",
    )  # fmt: skip
    cells = [cell["value"] for row in result["rows"] for cell in row]
    assert result["done"] == 4 and cells[2] == pytest.approx(1.5 * cells[0])
    marks = [cell["best"] for row in result["rows"] for cell in row]
    assert marks == [value == min(cells) for value in cells] and any(marks)
    changes = {"regions[east].usd_per_gpu_hour.G": 3, "objective.spare.instances": 1}
    path.write_text(edit(SCENARIO, changes))
    assert answer("plan", path)["totals"]["usd"] == cells[3] > cells[2]


def test_a_cell_that_cannot_be_says_why_and_others_go_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")  # so that no cell wraps
    vary = "regions[east].capacity.G=0,32"
    asked = "sweep", folder / "plan.yml", "--vary", vary, "--figure", "replicas"
    cells = [cell for row in answer(*asked)["rows"] for cell in row]
    assert [cell["state"] for cell in cells] == ["failed", "completed"] and cells[0]["problem"]
    assert not any(cell["best"] for cell in cells)  # the other cell has none to be better than
    code, out, err = command(*asked)
    assert code == 0 and cells[0]["problem"] in out and not err
    code, _, err = command("sweep", folder / "plan.yml", "--vary", "seed")
    assert code == 2 and "KEY=A,B" in err
