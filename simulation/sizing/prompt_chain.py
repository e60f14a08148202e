"""Compute the delays of prompts by iteration, as a Markov chain on the waiting tokens.

An iteration computes the waiting tokens, up to its room, and takes longer with more of them.
Prompts that arrive meanwhile wait for the next one. The waiting tokens at the start of an iteration
are therefore a Markov chain. From v tokens, max(v - room, 0) stay, and the Poisson arrivals of its
T(v) seconds are added.

If nothing waits, an instance with decodes runs a decode iteration. An instance without decodes
waits for a prompt and begins with it alone.

The chain is solved on a grid of tokens. Each prompt length is divided between the two nearest
cells, which keeps its mean.

A prompt may arrive at any moment. First it waits for the rest of the running iteration and for the
tokens before it. Then its own tokens are computed. Later prompts that fit in its last iteration
make that one longer.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from simulation.arrays import FloatArray
from simulation.compiler import cached_kernel
from simulation.performance.profile import Profile, iteration_s
from simulation.sizing.spread import Spread, spread, spread_of_many, thin
from simulation.sizing.workload import Workload

# Cells per iteration room; most cells per line, where the cells are larger.
CELLS, LONGEST = 16, 128
LEFT_OUT = 1e-5  # probability of longer waiting lines, which are ignored
MOST_CELLS = 2048  # largest grid
KNOTS = 128  # token counts for which iteration times are computed
# Arrival times within an iteration, as shares: the odd multiples of the first, an eighth.
MOMENTS = (np.arange(4) + 0.5) / 4
BEGIN, OWN = 12, 4  # points for lengths of a first prompt, and of a prompt behind others
# Fixed-point steps for tokens per iteration; standard deviations above their mean.
STEPS, AWAY = 30, 6.0
SETTLED = 1e-15  # relative change of a step at which the fixed point is reached
SEEN = 1e-5  # smallest probability that is evaluated
NOTHING = Spread(np.zeros(1), np.ones(1))


@dataclass(frozen=True, slots=True, eq=False)
class Delays:
    """How much later prompts are than if they were alone, in seconds, and how likely."""

    share: float  # share of prompts that arrive during an iteration
    begin: Spread  # of those: wait for the iteration that begins the prompt
    late: Spread  # of those: delay of the first token
    found: Spread  # part of that delay due to earlier prompts
    behind_s: float  # of all other prompts: mean delay due to later prompts


@dataclass(frozen=True, slots=True, eq=False)
class Iterations:
    """Iteration times by prompt tokens: ``took_s`` at evenly spaced ``knots`` from 0 to ``room``.

    ``room`` are the tokens of a full iteration.
    """

    room: float
    knots: FloatArray
    took_s: FloatArray

    @property
    def full_s(self) -> float:
        return float(self.took_s[-1])

    def seconds(self, tokens: FloatArray) -> FloatArray:
        """Return the seconds of an iteration when ``tokens`` wait; at most ``room`` count."""
        return np.asarray(np.interp(tokens, self.knots, self.took_s))

    def seconds_of_one(self, tokens: float) -> float:
        """Return the same as ``seconds`` for a single number of tokens, but much faster."""
        position = min(tokens / self.room, 1.0) * (len(self.took_s) - 1)
        low = min(int(position), len(self.took_s) - 2)
        begin, end = float(self.took_s[low]), float(self.took_s[low + 1])
        return begin + (end - begin) * (position - low)

    def before_last(self, tokens: FloatArray) -> FloatArray:
        """Return how many full iterations come before the one that completes ``tokens``."""
        return np.asarray(np.maximum(np.ceil(tokens / self.room - 1e-9) - 1.0, 0.0))

    def all_s(self, tokens: FloatArray, behind: FloatArray | float = 0.0) -> FloatArray:
        """Return the seconds of all iterations that compute ``tokens``.

        ``behind`` is the number of later tokens that share the last iteration.
        """
        full = self.before_last(tokens)
        last = self.seconds(tokens - full * self.room + behind)
        return np.asarray(full * self.full_s + last)


@dataclass(frozen=True, slots=True, eq=False)
class _Kinds:
    """The kinds of iterations of an instance, by the tokens that wait at their start.

    The first are iterations with 0 to ``max_cells`` waiting cells. The others begin with one prompt
    after an idle time, of each length in ``begin``. There are none if decodes run all the time.
    """

    max_cells: int
    begin: Spread
    seconds: FloatArray  # [kinds]
    left_over: FloatArray  # [begin, size] law of the cells that remain of the first prompt

    def after_idle(self, arrival_laws: FloatArray) -> FloatArray:
        """Return the law of the cells after an iteration that began with an empty line, ``[size]``.

        ``arrival_laws [kinds, size]`` are the cells that arrive during each kind of iteration.
        """
        if not self.begin.values.size:
            return np.asarray(arrival_laws[0])
        left_over = np.fft.rfft(self.left_over)
        after = np.fft.irfft(
            left_over * np.fft.rfft(arrival_laws[self.max_cells + 1 :]), self.left_over.shape[1]
        )
        return np.maximum(self.begin.weights @ after, 0.0)

    def time_spent(self, line_law: FloatArray) -> FloatArray:
        """Return the mean seconds per iteration by its kind and by cells left over, ``[K, size]``.

        ``line_law`` is the law of the cells that wait at the start of an iteration.
        """
        time_by_kind = np.zeros((len(self.seconds), self.left_over.shape[1]))
        last = self.max_cells
        time_by_kind[:last, 0] = line_law[:last] * self.seconds[:last]
        full = line_law[last:] * self.seconds[last]
        time_by_kind[last, : full.size] = full
        first_s = line_law[0] * self.begin.weights * self.seconds[last + 1 :]
        time_by_kind[last + 1 :] = first_s[:, None] * self.left_over
        return time_by_kind


def prompt_delays(
    profile: Profile, workload: Workload, decodes: float, running_s: float
) -> Delays | None:
    """Return the delays of prompts on one instance with ``decodes`` decodes, by a Markov chain.

    An iteration without prompts takes ``running_s``. 0 means that the instance then waits for
    prompts. The result is None if prompts arrive faster than they are computed. It is also None so
    close to saturation that thousands of full iterations may wait, since no SLO allows that.
    """
    isl, rate = workload.facts.prefill_points, workload.rate
    iterations = _iteration_times(profile, workload, decodes)
    room, mean = iterations.room, float(isl.mean())
    spare = room - rate * iterations.full_s * mean
    if spare <= 0:
        return None
    cells_per_iteration, cells = _grid(room, _longest_line(iterations, workload, spare))
    cell = room / cells_per_iteration  # tokens
    if cells > MOST_CELLS:
        return None
    size = 1 << int(2 * cells).bit_length()
    kinds = _kinds_of(iterations, isl, running_s, cell, min(cells_per_iteration, cells), size)
    # Tokens that arrive in T seconds are compound Poisson, with transform exp(rate T (phi - 1)).
    # Powers of that of an eighth of an iteration take a tenth of the time of exponentials.
    lengths = np.fft.rfft(_length_law(isl / cell, size)) - 1.0
    eighth = np.exp(rate * MOMENTS[0] * kinds.seconds[:, None] * lengths)
    arrival_laws = np.maximum(np.fft.irfft(((eighth**2) ** 2) ** 2, size), 0.0)
    line_law = _stationary_law(
        arrival_laws, kinds.after_idle(arrival_laws), cells, cells_per_iteration
    )
    waiting_laws = kinds.time_spent(line_law)
    idle = line_law[0] / max(rate, 1e-12) if running_s == 0 else 0.0
    waiting_laws /= idle + waiting_laws.sum()
    busy = float(waiting_laws.sum())
    waiting_laws /= max(busy, 1e-300)  # conditional on a running iteration
    likely = waiting_laws.sum(axis=1) > SEEN
    # Later prompts share the last iteration of a prompt that began at once.
    later_tokens = rate * mean * iterations.full_s * iterations.before_last(isl)
    behind_s = iterations.all_s(isl, later_tokens) - iterations.all_s(isl)
    late = NOTHING, NOTHING, NOTHING
    if likely.any():
        late = _delays_in_iteration(
            iterations,
            workload,
            waiting_laws[likely],
            kinds.seconds[likely],
            running_s,
            cell,
            eighth[likely],
        )
    return Delays(busy, *late, float(behind_s.mean()))


def _grid(room: float, longest_line: float) -> tuple[int, int]:
    """Return the cells of a full iteration, and those of the longest line of waiting tokens.

    A cell is a ``CELLS``-th of an iteration, or finer for short lines and coarser for long ones.
    """
    cell = max(min(room, longest_line / 4.0) / CELLS, longest_line / LONGEST)
    cells_per_iteration = max(int(room / cell), 1)
    return cells_per_iteration, int(np.ceil(longest_line / (room / cells_per_iteration)))


def _kinds_of(
    iterations: Iterations, isl: FloatArray, running_s: float, cell: float, max_cells: int,
    size: int,
) -> _Kinds:  # fmt: skip
    """Return the kinds of iterations for prompts of lengths ``isl``, with cells of ``cell`` tokens.

    ``running_s`` are the seconds of an iteration without prompts; 0: the instance idles instead.
    """
    begin = Spread(np.zeros(0), np.zeros(0)) if running_s > 0 else thin(spread(isl), BEGIN)
    cell_tokens = np.arange(1.0, max_cells + 1.0) * cell
    seconds = (iterations.seconds(tokens) for tokens in (cell_tokens, begin.values))
    left_over = _on_two_cells(np.maximum(begin.values - iterations.room, 0.0) / cell, size)
    return _Kinds(max_cells, begin, np.concatenate([[running_s], *seconds]), left_over)


def _on_two_cells(position: FloatArray, size: int) -> FloatArray:
    """Return laws on ``size`` cells with mean ``position``, each on its two neighbours."""
    laws = np.zeros((len(position), size))
    rows, low = np.arange(len(position)), np.floor(position).astype(np.int64)
    laws[rows, low + 1] = position - low
    laws[rows, low] = 1.0 - (position - low)
    return laws


def _delays_in_iteration(
    iterations: Iterations,
    workload: Workload,
    lines: FloatArray,
    iteration_s_by_kind: FloatArray,
    running_s: float,
    cell: float,
    eighth: npt.NDArray[np.complex128],
) -> tuple[Spread, Spread, Spread]:
    """Return ``Delays.begin``, ``late`` and ``found`` of prompts that arrive during an iteration.

    ``lines [kinds, size]`` has the probability of each number of waiting cells of ``cell`` tokens,
    by kind of running iteration. ``eighth`` is the transform of the arrivals in an eighth of it.
    """
    rate, isl = workload.rate, workload.facts.prefill_points
    own_length = thin(spread(isl), OWN)
    length = own_length.values[:, None]
    alone_s = iterations.all_s(length)
    tokens_per_s = rate * float(isl.mean())
    columns: list[list[FloatArray]] = [[], [], [], []]
    # Transform of the tokens that wait at a moment: those at the start, and arrivals since then.
    transform, quarter = np.fft.rfft(lines) * eighth, eighth**2
    for moment in MOMENTS:
        ahead = np.fft.irfft(transform, lines.shape[1])  # probability of tokens ahead of a prompt
        transform *= quarter
        row, cells = np.nonzero(ahead >= min(SEEN, float(ahead.max())))
        remaining_s, tokens = (1.0 - moment) * iteration_s_by_kind[row], cells * cell
        wait_s = remaining_s + np.floor(tokens / iterations.room + 1e-9) * iterations.full_s
        full_s = iterations.before_last(tokens + length) * iterations.full_s
        prompts_s = (1.0 - moment) * np.maximum(iteration_s_by_kind[row] - running_s, 0.0)
        found_s = prompts_s + iterations.all_s(tokens + length) - alone_s
        later_tokens = tokens_per_s * (remaining_s + full_s)
        late_s = remaining_s + iterations.all_s(tokens + length, later_tokens) - alone_s
        weight = ahead[row, cells] * own_length.weights[:, None]
        values = (
            np.broadcast_to(wait_s, found_s.shape), late_s, np.maximum(found_s, 0.0), weight,
        )  # fmt: skip
        for column_parts, column_values in zip(columns, values, strict=True):
            column_parts.append(column_values.ravel())
    waits, lates, founds, weights = (np.concatenate(column_parts) for column_parts in columns)
    return (
        spread_of_many(waits, weights),
        spread_of_many(lates, weights),
        spread_of_many(founds, weights),
    )


def _iteration_times(profile: Profile, workload: Workload, decodes: float) -> Iterations:
    """Return the iteration times with ``decodes`` decodes, by the number of prompt tokens."""
    room = max(profile.max_batch_tokens - decodes, 1.0)
    knots = np.linspace(0.0, room, KNOTS)
    tokens = np.append(min(1.0, room), knots[1:])  # without tokens there is no prefill
    context = decodes * workload.facts.decode_context
    seconds = iteration_s(profile, decodes, context, tokens, tokens * workload.facts.keys)
    return Iterations(room, knots, seconds)


def _longest_line(iterations: Iterations, workload: Workload, spare: float) -> float:
    """Return a number of waiting tokens that is hardly ever exceeded.

    ``spare`` is the room of a full iteration less the tokens that arrive in it. If that fits in one
    iteration, the bound of short lines is used, else that of long lines.
    """
    isl, rate = workload.facts.prefill_points, workload.rate
    mean, square, longest = float(isl.mean()), float((isl**2).mean()), float(isl[-1])
    # Long lines decay exponentially, as a random walk with this ratio of variance to drift.
    decay_tokens = rate * iterations.full_s * square / (2.0 * spare)
    long_line = iterations.room + longest - np.log(LEFT_OUT) * decay_tokens
    # Short lines: tokens that arrive during an iteration, which computes those before them.
    arriving = longest
    for _ in range(STEPS):
        before, arriving = arriving, rate * mean * iterations.seconds_of_one(arriving)
        if abs(arriving - before) <= SETTLED * arriving:
            break
    # Change of the arrivals by one more token in the iteration before
    growth_s = iterations.full_s - float(iterations.took_s[0])
    feedback = min(rate * mean * growth_s / iterations.room, 0.99)
    variance = rate * iterations.seconds_of_one(arriving + longest) * square / (1.0 - feedback**2)
    short_line = arriving + 2.0 * longest + AWAY * np.sqrt(variance)
    return float(short_line if short_line < iterations.room else long_line)


def _length_law(places: FloatArray, size: int) -> FloatArray:
    """Return the distribution of prompt lengths on the grid of cells, ``[size]``.

    ``places`` are lengths in cells. Each is divided between the two nearest cells.
    """
    low = np.floor(places).astype(np.int64)
    law = np.bincount(low, 1.0 - (places - low), size) + np.bincount(low + 1, places - low, size)
    return np.asarray(law / len(places), np.float64)


@cached_kernel
def _stationary_law(arrivals: Any, after_idle: Any, cells: int, down: int) -> Any:
    """Return the stationary law of the waiting cells at an iteration's start, ``[cells + 1]``.

    From v cells, at most ``down`` are computed, and the row ``min(v, down)`` of ``arrivals`` is
    added. From an empty line, ``after_idle`` is the whole distribution. Probability beyond the grid
    goes to its end. States are eliminated from the end (Grassmann, Taksar and Heyman 1985), which
    needs no subtraction.
    """
    size = cells + 1
    # Transition probabilities from v waiting cells to others, one iteration later.
    steps = np.zeros((size, size))
    for v in range(size):
        over = max(v - down, 0)
        law = after_idle if v == 0 else arrivals[min(v, min(down, cells))]
        inside = 0.0
        for to in range(over, size):
            steps[v, to] = law[to - over]
            inside += steps[v, to]
        steps[v, cells] += max(1.0 - inside, 0.0)
    # Remove the states from the end: paths through v become steps between lower states.
    lower = np.ones(size)  # probability to step from v below v
    for v in range(cells, 0, -1):
        first = max(v - down, 0)
        total = 0.0
        for to in range(first, v):
            total += steps[v, to]
        lower[v] = max(total, 1e-300)
        for u in range(v):
            share = steps[u, v] / lower[v]
            if share > 0.0:
                for to in range(first, v):
                    steps[u, to] += share * steps[v, to]
    law = np.zeros(size)
    law[0] = 1.0
    for v in range(1, size):
        total = 0.0
        for u in range(v):
            total += law[u] * steps[u, v]
        law[v] = total / lower[v]
    return law / law.sum()
