"""How sizes are corrected by what a replay attained: down where a tier is missed, up where more is
attained than was asked for, between what was found too small and what was found too large."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import polars as pl

from planner.scenario.build import Hardware
from planner.studies.checks.grounds import FEW
from planner.studies.replay.detail import ALL
from planner.studies.values import PolicyRun
from simulation.arrays import FloatArray
from simulation.fleet import Tier

HALF = 0.005  # of attainment above a tier's share: nearer needs no correction
PRECISION = 0.02  # of a size: nothing to be found between sizes that near
GROWTH = 1.25  # of a size that was too small, while none is known to be too large
MOST = 4.0  # times what was sized
LEAST_STEP, MOST_STEP = (
    0.03,
    0.3,
)  # taken off a size that was too large, while none is known to hold
BLAMED = 0.5  # of what the other stage misses, from which on a stage is too large as well


@dataclass(frozen=True, slots=True)
class Standing:
    """How a model stands at the interactive tier where it has least to spare."""

    tier: str
    spare: float  # attainment less the tier's share
    late: tuple[float, float]  # shares of the tier that missed the first token; another limit

    @property
    def near(self) -> bool:
        return 0.0 <= self.spare <= HALF


def standings(tiers: tuple[Tier, ...], run: PolicyRun) -> dict[str, Standing]:
    """By model, of the tiers of which it had enough requests; ``run`` has a row per request."""
    requests, tier_named = run.detail.requests, {tier.name: tier for tier in tiers}
    assert requests is not None
    by_model: dict[str, Standing] = {}
    for row in run.detail.groups.filter(pl.col("region") == ALL).iter_rows(named=True):
        tier = tier_named.get(row["tier"])
        if tier is None or tier.deferrable or row["model"] == ALL or row["arrived"] < FEW:
            continue
        its = requests.filter(model=row["model"], tier=tier.name)
        limit = np.inf if tier.ttft_s is None else 1000 * tier.ttft_s
        prompt = float(np.mean(its["ttft_ms"].fill_null(np.inf).to_numpy() > limit))
        missed = 1.0 - row["attainment"]
        standing = Standing(
            tier.name, row["attainment"] - tier.attainment, (prompt, max(missed - prompt, 0.0))
        )
        if row["model"] not in by_model or standing.spare < by_model[row["model"]].spare:
            by_model[row["model"]] = standing
    return by_model


@dataclass(slots=True)
class Bracket:
    """A size as a multiple of what was sized: tried now, the largest that held, the smallest that
    did not."""

    factor: float = 1.0
    held: float | None = None
    missed: float | None = None

    @property
    def open(self) -> bool:
        if self.held is None:
            return True
        return self.held < MOST and (
            self.missed is None or self.missed > self.held * (1.0 + PRECISION)
        )

    def larger(self, growth: float) -> None:
        """It held."""
        self.held = self.factor
        if self.missed is not None and self.missed <= self.held:
            self.missed = None
        self.factor = self._between() or min(self.factor * growth, MOST)

    def smaller(self, short: float) -> None:
        """It did not, by ``short`` of attainment."""
        self.missed = self.factor
        if self.held is not None and self.held >= self.missed:
            self.held = None
        step = float(np.clip(2.0 * short, LEAST_STEP, MOST_STEP))
        self.factor = self._between() or self.factor * (1.0 - step)

    def _between(self) -> float | None:
        if self.held is None or self.missed is None:
            return None
        return float(np.sqrt(self.held * self.missed))


@dataclass(slots=True)
class Correction:
    """Factors of the sizes, one for each model and stage of its columns (0 both, 1 prefill, 2
    decode)."""

    hardware: Hardware
    brackets: dict[tuple[int, int], Bracket] = field(default_factory=dict)
    settled: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        for m, g in self.hardware.profiles:
            self.brackets.setdefault((m, int(self.hardware.stages[g])), Bracket())

    @property
    def factors(self) -> FloatArray:
        """``[l, g]``, as they are tried now."""
        out = np.ones((len(self.hardware.models), len(self.hardware.columns)))
        for m, g in self.hardware.profiles:
            out[m, g] = self.brackets[m, int(self.hardware.stages[g])].factor
        return out

    @property
    def named(self) -> dict[str, float]:
        """The factors by model, and by role where prefill and decode have their own."""
        roles = {0: "", 1: " prefill", 2: " decode"}
        names = [model.name for model in self.hardware.models]
        return {
            names[m] + roles[stage]: bracket.factor for (m, stage), bracket in self.brackets.items()
        }

    def learn(self, standings: dict[str, Standing], growth: float = GROWTH) -> bool:
        """Other factors for the models that are not near their tiers; whether there are any. Models
        with too few requests stay as they are."""
        moved = False
        for m, model in enumerate(self.hardware.models):
            standing = standings.get(model.name)
            if standing is None or model.name in self.settled:
                continue
            if standing.near:
                self.settled.add(model.name)
                continue
            moved |= self._move(m, standing, growth)
        return moved

    def _move(self, m: int, standing: Standing, growth: float) -> bool:
        its = {
            place[1]: bracket
            for place, bracket in self.brackets.items()
            if place[0] == m and bracket.open
        }
        if standing.spare < 0:
            late = {0: 1.0, 1: standing.late[0], 2: standing.late[1]}
            most = max((late[stage] for stage in its), default=0.0)
            for stage, bracket in its.items():
                if late[stage] >= BLAMED * most:
                    bracket.smaller(-standing.spare)
        else:
            for bracket in its.values():
                bracket.larger(growth)
        return any(bracket.open for bracket in its.values())

    def rest(self) -> None:
        """Every model that is not settled at the largest size that held, or the least tried."""
        names = [model.name for model in self.hardware.models]
        for (m, _), bracket in self.brackets.items():
            if names[m] not in self.settled:
                bracket.factor = bracket.factor if bracket.held is None else bracket.held
