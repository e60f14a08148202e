"""Measure a GPU, and write the facts of ``planner/inputs/catalogue`` from measured rows."""

from pathlib import Path

DATA = Path(__file__).parents[2] / "../shared/data"
