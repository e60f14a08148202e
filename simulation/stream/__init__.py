"""Replays of more requests than fit in memory, read in pieces and reported as sums."""
