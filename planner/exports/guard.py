"""What a guarded policy adds above its timetable, as exports need it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from simulation.policies.guarded import AMONG, IN_FLIGHT, OUTPUT, PROMPT, Guarded


@dataclass(frozen=True, slots=True)
class Guard:
    """What a policy adds above its timetable where load asks for it (LT-G), by what one instance
    of a large pool serves and holds; NaN where a pool does not do it. ``shares``: of that, what
    each of so many does, by rising number; none where each does the same (an earlier release)."""

    prompt_tps: float
    output_tps: float
    in_flight: float  # requests that run or wait
    rise_s: float  # that it has to show at every look
    fall_s: float  # that what was added stays
    most: int  # replicas that there may be
    shares: tuple[tuple[int, float], ...] = ()

    def staffing(self, least: int, most: int) -> tuple[float, float]:
        """(a, k): n replicas do what a * (n - k sqrt(n)) of a large pool do, the law that sizes
        follow (``simulation.sizing.pool``) through what ``least`` and ``most`` do."""
        if not self.shares:
            return 1.0, 0.0
        sizes, shares = np.array(self.shares).T
        least = max(least, 1)
        ends = np.array([least, most if most > least else 2 * least]) ** -0.5
        low, high = np.interp(-ends, -(sizes**-0.5), shares)
        slope = max(high - low, 0.0) / (ends[0] - ends[1])
        a = low + slope * ends[0]
        return float(a), float(slope / a)


def guards_of(settings: Sequence[dict[str, Any]]) -> dict[str, Guard]:
    """By place, from what a result says a policy goes by; none of a policy that its timetable says
    all of, nor of an earlier release's."""
    settings_of_place: dict[str, dict[str, Any]] = {}
    for setting in settings:
        settings_of_place.setdefault(setting["where"], {})[setting["what"]] = setting["value"]
    shared = settings_of_place.pop("", {})
    return {
        place: Guard(
            prompt_tps=float(of.get(PROMPT, np.nan)),
            output_tps=float(of.get(OUTPUT, np.nan)),
            in_flight=float(of[IN_FLIGHT]),
            rise_s=float(shared.get("rise_s", Guarded.rise_s)),
            fall_s=float(shared.get("fall_s", Guarded.fall_s)),
            most=int(of["replicas at most"]),
            shares=tuple((n, float(of[what])) for n, what in AMONG.items() if what in of),
        )
        for place, of in settings_of_place.items()
        if IN_FLIGHT in of
    }
