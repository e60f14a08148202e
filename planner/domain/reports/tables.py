"""Read the stored tables of a run."""

from collections.abc import Callable

import polars as pl

Tables = Callable[[str], pl.DataFrame]  # of a name; without rows and columns if the run has none
