"""How accurate the profiles are, measured on the shared data, and how fast they evaluate."""
