"""What a comparison says of its window and of what binds plans alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from planner.studies.results.frame import ways_closed


@pytest.mark.parametrize(
    ("ways", "said"),
    [
        (None, False),
        ([[0.0, 0.2], [0.1, 0.0]], False),  # home needs no way
        ([[0.0, 0.2], [0.0, 0.0]], True),
    ],
)
def test_a_way_closed_to_plans_is_said_to_be_open_to_requests(ways: Any, said: bool) -> None:
    given = None if ways is None else np.array(ways)
    plan = SimpleNamespace(reroute=given)
    one = cast(Any, SimpleNamespace(settings=SimpleNamespace(plan=plan)))
    assert bool(ways_closed(one)) == said
