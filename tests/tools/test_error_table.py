from __future__ import annotations

from dataclasses import replace

import numpy as np

from simulation.performance.estimate.errors import CellSelector
from tools.catalogue.error_table import error_table


def test_stated_errors_are_of_the_closest_cell_and_their_tail_outlives_any_group() -> None:
    where = CellSelector(False, 8.0, "vllm", False)
    assert next(where.names()) == "agg low vllm plain"
    errors = np.concatenate([np.full(60, 0.05), np.full(40, 0.5)])
    groups = np.repeat(["a", "b"], [60, 40])
    table = error_table([where] * 100, errors, errors, groups)
    key, cell = table.of(where)
    assert key == "agg low vllm plain" and cell.tbt == 0.05 and cell.tbt_90 == 0.5
    assert table.of(replace(where, engine="trtllm", users=8.0))[0] == "agg low plain"
    assert table.of(replace(where, users=1e6))[0] == "agg plain"
    assert table.of(replace(where, split=True))[1] == table.cells["agg"]
