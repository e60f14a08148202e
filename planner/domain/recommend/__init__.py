"""Recommend a policy: test days, trials of the candidates on them, and the rule that chooses."""
