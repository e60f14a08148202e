from dataclasses import replace

import numpy as np

from simulation.performance.estimate.calibration import CellSelector
from tools.catalogue.error_table import error_table


def test_stated_errors_are_of_the_closest_cell_with_enough_groups() -> None:
    where = CellSelector(False, 8.0, "vllm", False)
    assert next(where.names()) == "agg low vllm plain"
    errors = np.concatenate([np.full(60, 0.05), np.full(40, 0.5)])
    groups = np.arange(100).astype(str)
    table = error_table([where] * 100, errors, errors, groups)
    key, cell = table.of(where)
    assert key == "agg low vllm plain" and cell.tbt == 0.05 and cell.tbt_90 == 0.5
    assert table.of(replace(where, engine="trtllm", users=8.0))[0] == "agg low plain"
    assert table.of(replace(where, users=1e6))[0] == "agg plain"
    assert table.of(replace(where, split=True))[1] == table.cells["agg"]


def test_a_cell_of_one_group_states_no_error() -> None:
    where = CellSelector(False, 8.0, "vllm", False)
    errors = np.concatenate([np.full(144, 0.05), np.full(15, 0.5)])
    few = error_table([where] * 159, errors, errors, np.full(159, "one")).cells
    assert set(few) == {"agg", "disagg"} and few["agg"].tbt == 0.05
