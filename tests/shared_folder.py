"""External oracles: real data and other people's answers, which lie beside the repository.

A test that needs them is skipped where they are not, and the end of the run says how many were and
what nothing was compared with.
"""

import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

SHARED = (Path(__file__).parents[1] / "../shared").resolve()
DATA = SHARED / "data"
TRACES = DATA / "traces"
PROFILES = DATA / "profiles"
INSTANCES = SHARED / "reference" / "plan_instances"
ORACLES = {
    TRACES: "real traffic",
    PROFILES: "published measurements",
    DATA: "published facts of hardware, power, prices and carbon",
    INSTANCES: "reference instances of the plan",
    SHARED: "another simulator's answers",
}
_MARK = "../shared is not here to compare with "


def shared(path: Path) -> Path:
    """``path``, a file or folder of ../shared; without it the test is skipped."""
    if not path.exists():
        pytest.skip(absent(path))
    return path


def needs_shared(path: Path) -> pytest.MarkDecorator:
    """Skips a test that cannot do without ``path``."""
    return pytest.mark.skipif(not path.exists(), reason=absent(path))


def absent(path: Path) -> str:
    path = Path(os.path.abspath(path))
    oracle = next(what for folder, what in ORACLES.items() if path.is_relative_to(folder))
    return f"{_MARK}{oracle} ({path.relative_to(SHARED)})"


def missed(reasons: Iterable[str]) -> str:
    """What the skipped tests of a run would have compared with, in a sentence; '' for nothing."""
    oracles = Counter(
        reason.split(_MARK, 1)[1].rsplit(" (", 1)[0] for reason in reasons if _MARK in reason
    )
    if not oracles:
        return ""
    parts = ", ".join(f"{oracle} ({count})" for oracle, count in oracles.most_common())
    return (
        f"{oracles.total()} tests were skipped because ../shared is not here: nothing was compared "
        f"with {parts}."
    )
