"""bin/manage profiles: list, show, import."""

from functools import partial
from pathlib import Path

import pytest

from planner.models import Calibration
from planner.selectors.measured_corrections import deployment_rows
from tests.planner.management.calling import answer, problem
from tests.planner.web.test_hardware import HEAD, MEASURED

pytestmark = pytest.mark.django_db


answered, refused = partial(answer, "profiles"), partial(problem, "profiles")


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    path = tmp_path / "bench.csv"
    path.write_text(MEASURED)
    return path


def test_a_file_is_fitted_kept_listed_and_shown(measured: Path) -> None:
    made = answered("import", measured, "--kind", "linear", "--name", "mine")
    assert (made["version"], made["model"], made["gpu"]) == (1, "llama-3.1-8b", "H100-SXM")
    assert made["parameters"]["beta"]["value"] == pytest.approx(0.5)
    again = answered("import", measured, "--kind", "table", "--name", "mine")
    assert again["versions"] == [2, 1]
    assert answered("show", "mine", "--version", 1)["kind"] == "linear"
    listed = answered("list", "--search", "mine")["profiles"]
    assert [(profile["name"], profile["version"]) for profile in listed] == [("mine", 2)]


def test_which_rows_are_meant_must_be_said(tmp_path: Path, measured: Path) -> None:
    two = tmp_path / "two.csv"
    two.write_text(f"{MEASURED}llama-3.1-8b,H100-SXM,2,1,64,128,10,10\n")
    complaints = refused("import", two, "--kind", "linear")
    assert "2 arrangements" in complaints and "--tp" in complaints
    assert answered("import", two, "--kind", "linear", "--tp", 1)["tp"] == 1
    assert "there is no such file" in refused("import", tmp_path / "none.csv", "--kind", "table")
    asked = ("import", "--kind", "linear", "--model", "m", "--gpu", "g")
    assert "fitted to benchmark rows" in refused(*asked)
    bad = tmp_path / "bad.csv"
    bad.write_text(f"{HEAD}\nm,g,1,x,1,1,1,1\n")
    assert "bad.csv, line 2" in refused("import", bad, "--kind", "table")
    assert "there is no profile" in refused("show", "nobody").lower()


def test_a_roofline_needs_no_file() -> None:
    made = answered("import", "--kind", "roofline", "--model", "llama-3.1-8b", "--gpu", "L40S")
    assert (made["kind"], made["provenance"]) == ("roofline", "modelled")
    assert made["error"] is not None


def test_measured_rows_are_kept_with_the_engine_that_served_them(tmp_path: Path) -> None:
    path = tmp_path / "served.csv"
    path.write_text("tp,isl,osl,concurrency,ttft_ms,tbt_ms\n1,1024,256,8,90,9.5\n")
    words = ("--model", "llama-3.1-8b", "--gpu", "H100-SXM", "--engine", "vllm")
    kept = answered("keep", path, *words, "--engine-version", "0.19.0")
    assert (kept["rows"], kept["served"]) == (1, 1)
    (row,) = deployment_rows(Calibration.objects.get(pk=kept["calibration"]))
    assert (row["engine"], row["engine_version"], row["tbt_ms"]) == ("vllm", "0.19.0", 9.5)
    assert kept["missing"] == ["ttft_statistic", "replicas"]
    answered("remove", kept["calibration"])
    assert not Calibration.objects.filter(pk=kept["calibration"]).exists()
    assert "model (" in refused("keep", tmp_path / "served.csv")
