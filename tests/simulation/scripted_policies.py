"""Policies that ask for what a test says, or are asked at each control instant."""

import numpy as np

from simulation.policy import Actions


class Asking:
    """``first`` instances at time 0, then ``asked[i]`` at the i-th instant (the last from then
    on): targets, or a dict of the fields of ``Actions``."""

    name = "asking"

    def __init__(self, first, *asked, every=60.0):
        self.first, self.asked, self.interval_s = first, asked, every

    def reset(self, fleet):
        self.calls = 0
        self.seen = []
        return np.array(self.first)

    def decide(self, observation):
        self.seen.append(observation)
        asked = self.asked[min(self.calls, len(self.asked) - 1)] if self.asked else self.first
        self.calls += 1
        if not isinstance(asked, dict):
            return np.array(asked)
        return Actions(**{k: v if k == "soft_s" else np.array(v) for k, v in asked.items()})


def asked_each_time(rule):
    """Return the class ``rule`` with a ``decide`` of its own: it decides alike, but the engine
    cannot know how long a decision holds, and asks at each instant."""
    return type(rule.__name__, (rule,), {"decide": lambda self, seen: rule.decide(self, seen)})
