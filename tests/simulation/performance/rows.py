"""Rows of several files as of one."""

from collections.abc import Sequence
from dataclasses import fields

import numpy as np

from simulation.performance.rows import BenchmarkRows


def joined(parts: Sequence[BenchmarkRows]) -> BenchmarkRows:
    names = [field.name for field in fields(BenchmarkRows)]
    return BenchmarkRows(
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    )
