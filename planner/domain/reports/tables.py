"""Define how reports read the stored tables of a run."""

from collections.abc import Callable

import polars as pl

# A function from a table's name to the table. It has no rows and columns if the run lacks it.
Tables = Callable[[str], pl.DataFrame]
