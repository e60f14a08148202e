"""Replays of more requests than fit in memory: given in pieces, told in sums."""
