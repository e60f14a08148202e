"""Prompts by the iterations that compute them: who comes during one waits until it ends.

An iteration takes what waits, up to the tokens that there is room for, and takes the longer the
more that is; what comes meanwhile is for the next one. So the tokens that wait when an iteration
begins are a Markov chain: v of them leave max(v - room, 0), and those of the prompts that come in
its T(v) seconds, Poisson's, are added. Where nothing waits an instance that decodes goes on with
its decodes, one without waits for a prompt and begins with that alone. The law of the chain is
solved on a grid of tokens (each prompt divided between the two cells beside it, so that none gets
longer or shorter). Then a prompt is looked at that comes at any moment: the rest of the running
iteration, the tokens before it, its own, and those that come behind it while there is room in the
iteration that it ends in.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simulation.arrays import FloatArray
from simulation.performance.profile import Profile, iteration_s
from simulation.sizing.spread import Spread, gathered, spread, thinned
from simulation.sizing.workload import Workload

CELLS, LONGEST = 16, 128  # of an iteration's room, fewer where lines are long; of a line
LEFT_OUT = 1e-5  # share of lines, that are longer
MOST_CELLS = 2048  # of a line, each an iteration's where prompts are long beside one
KNOTS = 128  # numbers of tokens at which an iteration's seconds are looked up
MOMENTS = (np.arange(4) + 0.5) / 4  # of an iteration at which prompts come
BEGIN, OWN = 12, 4  # lengths that stand for all as they begin by themselves, and behind others
STEPS, AWAY = 30, 6.0  # towards what an iteration comes to; standard deviations from it
SEEN = 1e-5  # share of prompts that is worth a look
NOTHING = Spread(np.zeros(1), np.ones(1))


@dataclass(frozen=True, slots=True, eq=False)
class Delays:
    """What a prompt takes longer than by itself, seconds."""

    share: float  # of prompts that find an iteration running
    begin: Spread  # of those: until the iteration that begins it
    late: Spread  # of those: by which its first token comes later
    found: Spread  # of that, what earlier prompts make of it
    behind_s: float  # of the others: what those make of it that come behind them


@dataclass(frozen=True, slots=True, eq=False)
class Iterations:
    """What computes prompts: seconds of 0 .. ``room`` tokens, evenly."""

    room: float
    took_s: FloatArray

    @property
    def full_s(self) -> float:
        return float(self.took_s[-1])

    def seconds(self, tokens: FloatArray) -> FloatArray:
        """Of one that begins with so many; it takes what there is room for."""
        return np.asarray(
            np.interp(tokens, np.linspace(0.0, self.room, len(self.took_s)), self.took_s)
        )

    def before_last(self, tokens: FloatArray) -> FloatArray:
        """Full ones before the one that computes the last of so many."""
        return np.asarray(np.maximum(np.ceil(tokens / self.room - 1e-9) - 1.0, 0.0))

    def all_s(self, tokens: FloatArray, behind: FloatArray | float = 0.0) -> FloatArray:
        """Of all that compute so many, with so many behind them in the last."""
        full = self.before_last(tokens)
        last = self.seconds(tokens - full * self.room + behind)
        return np.asarray(full * self.full_s + last)


def delays(profile: Profile, workload: Workload, beside: float, running_s: float) -> Delays | None:
    """Of prompts on one instance with ``beside`` decodes, an iteration of which takes ``running_s``
    (0: it waits for prompts); None where they come faster than they are computed, or so nearly as
    fast that thousands of full iterations may wait: a limit that allows for that sizes nothing."""
    isl, rate = workload.facts.isl_points, workload.rate
    each = _iterations(profile, workload, beside)
    room, mean = each.room, float(isl.mean())
    spare = room - rate * each.full_s * mean
    if spare <= 0:
        return None
    reach = _reach(each, workload, spare)
    cell = max(min(room, reach / 4.0) / CELLS, reach / LONGEST)
    per = max(int(room / cell), 1)
    cell = room / per
    count = int(np.ceil(reach / cell))
    if count > MOST_CELLS:
        return None
    most = min(per, count)
    size = 1 << int(2 * count).bit_length()
    lengths = np.fft.rfft(_cells(isl / cell, size)) - 1.0

    # Iterations by what they begin with: 0 .. ``per`` cells, or one prompt where nothing waited.
    begin = thinned(spread(isl), BEGIN)
    if running_s > 0:
        begin = Spread(np.zeros(0), np.zeros(0))
    took = np.concatenate(
        [[running_s], each.seconds(np.arange(1.0, most + 1.0) * cell), each.seconds(begin.values)]
    )
    left = np.array([_moved(size, over / cell) for over in np.maximum(begin.values - room, 0.0)])
    come = np.maximum(np.fft.irfft(np.exp(rate * took[:, None] * lengths), size), 0.0)
    steps = np.zeros((count + 1, count + 1))
    for v in range(count + 1):
        over = max(v - per, 0)
        steps[v, over:] = come[min(v, most), : count + 1 - over]
    if running_s == 0:
        after = np.fft.irfft(np.fft.rfft(left) * np.fft.rfft(come[most + 1 :]), size)
        steps[0] = np.maximum(begin.weights @ after, 0.0)[: count + 1]
    law = _stationary(steps, per)

    # Shares of time by the iteration that runs and the cells that it leaves.
    lines = np.zeros((len(took), size))
    lines[:most, 0] = law[:most] * took[:most]
    lines[most, : count + 1 - most] = law[most:] * took[most]
    if running_s == 0:
        lines[most + 1 :] = (law[0] * begin.weights * took[most + 1 :])[:, None] * left
    idle = law[0] / max(rate, 1e-12) if running_s == 0 else 0.0
    lines /= idle + lines.sum()
    busy = float(lines.sum())
    lines /= max(busy, 1e-300)  # of those who find one
    seen = lines.sum(axis=1) > SEEN
    behind = each.all_s(isl, rate * mean * each.full_s * each.before_last(isl)) - each.all_s(isl)
    late = NOTHING, NOTHING, NOTHING
    if seen.any():
        late = _late(each, workload, lines[seen], took[seen], running_s, cell, lengths)
    return Delays(busy, *late, float(behind.mean()))


def _late(
    each: Iterations,
    workload: Workload,
    lines: FloatArray,
    took: FloatArray,
    running_s: float,
    cell: float,
    lengths: npt.NDArray[np.complex128],
) -> tuple[Spread, Spread, Spread]:
    """``begin``, ``late`` and ``behind`` of those who come while an iteration runs."""
    rate, isl = workload.rate, workload.facts.isl_points
    law = thinned(spread(isl), OWN)
    length = law.values[:, None]
    alone = each.all_s(length)
    turned, per_s = np.fft.rfft(lines), rate * float(isl.mean())
    parts: list[list[FloatArray]] = [[], [], [], []]
    for moment in MOMENTS:
        before = turned * np.exp(rate * moment * took[:, None] * lengths)
        ahead = np.fft.irfft(before, lines.shape[1])
        row, column = np.nonzero(ahead >= min(SEEN, float(ahead.max())))
        rest, tokens = (1.0 - moment) * took[row], column * cell
        wait = rest + np.floor(tokens / each.room + 1e-9) * each.full_s
        full = each.before_last(tokens + length) * each.full_s
        prompts = (1.0 - moment) * np.maximum(took[row] - running_s, 0.0)
        behind = prompts + each.all_s(tokens + length) - alone
        late = rest + each.all_s(tokens + length, per_s * (rest + full)) - alone
        weight = ahead[row, column] * law.weights[:, None]
        values = (np.broadcast_to(wait, behind.shape), late, np.maximum(behind, 0.0), weight)
        for part, value in zip(parts, values, strict=True):
            part.append(value.ravel())
    waits, lates, founds, weights = (np.concatenate(part) for part in parts)
    return gathered(waits, weights), gathered(lates, weights), gathered(founds, weights)


def _iterations(profile: Profile, workload: Workload, beside: float) -> Iterations:
    room = max(profile.max_batch_tokens - beside, 1.0)
    tokens = np.linspace(0.0, room, KNOTS)
    tokens[0] = min(1.0, room)  # of none, nothing is computed
    context = beside * workload.facts.decode_context
    took = iteration_s(profile, beside, context, tokens, tokens * workload.facts.keys)
    return Iterations(room, took)


def _reach(each: Iterations, workload: Workload, spare: float) -> float:
    """Tokens that hardly ever more wait than."""
    isl, rate = workload.facts.isl_points, workload.rate
    mean, square, longest = float(isl.mean()), float((isl**2).mean()), float(isl[-1])
    # Long lines fall off as those of a walk of this drift and variance do.
    line = rate * each.full_s * square / (2.0 * spare)
    reach = each.room + longest - np.log(LEFT_OUT) * line
    # Where there is room to spare: what comes in an iteration that computes what came in one.
    few = longest
    for _ in range(STEPS):
        few = rate * mean * float(each.seconds(np.array(few)))
    steeper = min(rate * mean * (each.full_s - float(each.took_s[0])) / each.room, 0.99)
    varies = rate * float(each.seconds(np.array(few + longest))) * square / (1.0 - steeper**2)
    usual = few + 2.0 * longest + AWAY * np.sqrt(varies)
    return float(usual if usual < each.room else reach)


def _cells(places: FloatArray, size: int) -> FloatArray:
    """Of lengths in cells, each divided between the two cells beside it."""
    low = np.floor(places).astype(np.int64)
    law = np.bincount(low, 1.0 - (places - low), size) + np.bincount(low + 1, places - low, size)
    return np.asarray(law / len(places), np.float64)


def _moved(size: int, by: float) -> FloatArray:
    return _cells(np.array([by]), size)


def _stationary(steps: FloatArray, down: int) -> FloatArray:
    """Of a chain that goes down by at most ``down``; what leaves the grid goes to its end. State by
    state is taken out from the end (Grassmann, Taksar and Heyman 1985: nothing is subtracted); a
    solver's threads would cost more than they gain on so few."""
    steps[:, -1] += np.maximum(1.0 - steps.sum(axis=1), 0.0)
    lower = np.ones(len(steps))
    for v in range(len(steps) - 1, 0, -1):
        first = max(v - down, 0)
        lower[v] = max(float(steps[v, first:v].sum()), 1e-300)
        steps[:v, first:v] += (steps[:v, v] / lower[v])[:, None] * steps[v, first:v]
    law = np.zeros(len(steps))
    law[0] = 1.0
    for v in range(1, len(steps)):
        law[v] = float((law[:v] * steps[:v, v]).sum()) / lower[v]
    return np.asarray(law / law.sum(), np.float64)
