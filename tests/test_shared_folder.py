"""Oracles that are not there are counted, and nobody else decides what to do without them."""

import re
from pathlib import Path

import pytest

from tests.shared_folder import DATA, INSTANCES, PROFILES, SHARED, TRACES, absent, missed

TESTS = Path(__file__).parent


def test_the_end_of_a_run_says_what_nothing_was_compared_with() -> None:
    reasons = [f"Skipped: {absent(TRACES / name)}" for name in ("a.csv", "b.csv")]
    reasons += [absent(INSTANCES / "4x3x1_0.npz"), "Chromium is not installed"]
    assert missed(reasons) == (
        "3 tests were skipped because ../shared is not here: nothing was compared with real "
        "traffic (2), reference instances of the plan (1)."
    )
    assert missed(["Chromium is not installed"]) == missed([]) == ""


@pytest.mark.parametrize(
    ("path", "oracle"),
    [
        (PROFILES, "published measurements"),
        (DATA / "carbon" / "x.csv", "published facts of hardware, power, prices and carbon"),
        (SHARED / "reference", "another simulator's answers"),
    ],
)
def test_an_oracle_is_known_by_its_folder(path: Path, oracle: str) -> None:
    assert f"to compare with {oracle} (" in absent(path)


def test_only_one_place_knows_where_oracles_lie() -> None:
    others = [path for path in TESTS.rglob("*.py") if not path.name.endswith("shared_folder.py")]
    assert others
    assert not [str(p) for p in others if re.search(r"[\"'(/ ]\.\./shared", p.read_text("utf-8"))]
