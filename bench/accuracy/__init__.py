"""How accurate the profiles are, measured on the shared data, and how fast they evaluate."""

from pathlib import Path

DATA = Path(__file__).parents[2] / "../shared/data"
