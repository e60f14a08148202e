"""What writes the facts of ``planner/catalogue`` from measured rows, and measures a GPU."""

from pathlib import Path

DATA = Path(__file__).parents[2] / "../shared/data"
