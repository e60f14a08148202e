"""Compute the delays of prompts by iteration, as a Markov chain on the waiting tokens.

An iteration computes the waiting prompt tokens, up to its ``budget``, and takes longer with more of
them. Prompts that arrive meanwhile wait for the next one. The waiting tokens at the start of an
iteration are therefore a Markov chain. From v tokens, max(v - budget, 0) stay, and the Poisson
arrivals of its T(v) seconds are added.

If nothing waits, an instance with decodes runs a decode iteration. An instance without decodes
idles until a prompt arrives, and begins with it alone.

The chain is solved on a grid: tokens are counted in *cells* of a fixed number of tokens. Each
prompt length is divided between the two nearest numbers of cells, which keeps its mean. A
distribution of a number of cells is an array ``[size]`` of probabilities.

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

# Cells of a full iteration; most cells of the longest queue, for which cells are made larger.
CELLS, LONGEST = 16, 128
IGNORED_PROBABILITY = 1e-5  # probability of longer queues, which are ignored
MOST_CELLS = 2048  # largest grid
TIME_KNOTS = 128  # token counts for which iteration times are computed
# Arrival times within an iteration, as shares: the odd multiples of the first, an eighth.
MOMENTS = (np.arange(4) + 0.5) / 4
# Points for the lengths of a prompt that ends an idle time, and of a prompt that waits for others.
FIRST_POINTS, OWN_POINTS = 12, 4
# Fixed-point steps for tokens per iteration; standard deviations above their mean.
ARRIVING_STEPS, DEVIATIONS_ABOVE_MEAN = 30, 6.0
MAX_RELATIVE_STEP = 1e-15  # relative change of a step at which the fixed point is reached
MIN_PROBABILITY = 1e-5  # smallest probability that is evaluated
NO_DELAY = Spread(np.zeros(1), np.ones(1))


@dataclass(frozen=True, slots=True, eq=False)
class Delays:
    """How much later prompts are than if they were alone, in seconds, and how likely.

    The distributions are those of prompts that arrive during an iteration.
    """

    share: float  # share of prompts that arrive during an iteration
    start_wait: Spread  # wait for the iteration that begins the prompt
    first_token: Spread  # delay of the first token
    by_earlier: Spread  # part of that delay due to earlier prompts
    others_s: float  # mean delay of all other prompts, due to later prompts


@dataclass(frozen=True, slots=True, eq=False)
class Iterations:
    """Iteration times by the number of prompt tokens."""

    budget: float  # prompt tokens of a full iteration
    knots: FloatArray  # evenly spaced numbers of tokens from 0 to ``budget``
    took_s: FloatArray  # seconds of an iteration at each knot

    @property
    def full_s(self) -> float:
        """Return the seconds of a full iteration."""
        return float(self.took_s[-1])

    def seconds(self, tokens: FloatArray) -> FloatArray:
        """Return the seconds of an iteration when ``tokens`` wait; at most ``budget`` count."""
        return np.asarray(np.interp(tokens, self.knots, self.took_s))

    def seconds_of_one(self, tokens: float) -> float:
        """Return the same as ``seconds`` for a single number of tokens, but much faster."""
        position = min(tokens / self.budget, 1.0) * (len(self.took_s) - 1)
        low = min(int(position), len(self.took_s) - 2)
        begin, end = float(self.took_s[low]), float(self.took_s[low + 1])
        return begin + (end - begin) * (position - low)

    def full_iterations(self, tokens: FloatArray) -> FloatArray:
        """Return how many full iterations come before the one that completes ``tokens``."""
        return np.asarray(np.maximum(np.ceil(tokens / self.budget - 1e-9) - 1.0, 0.0))

    def all_s(self, tokens: FloatArray, behind: FloatArray | float = 0.0) -> FloatArray:
        """Return the seconds of all iterations that compute ``tokens``.

        ``behind`` is the number of later tokens that share the last iteration.
        """
        full = self.full_iterations(tokens)
        last = self.seconds(tokens - full * self.budget + behind)
        return np.asarray(full * self.full_s + last)


@dataclass(frozen=True, slots=True)
class _Grid:
    """The cells into which waiting prompt tokens are divided."""

    cell_tokens: float
    cells_per_iteration: int
    cells: int  # of the longest queue

    @property
    def size(self) -> int:
        """Return the length of distributions, a power of two for the transforms."""
        return 1 << int(2 * self.cells).bit_length()


@dataclass(frozen=True, slots=True, eq=False)
class _Kinds:
    """The kinds of iterations of an instance, by the tokens that wait at their start.

    Kinds 0 to ``max_cells`` begin with that many waiting cells (the last: or more). Each further
    kind begins with one prompt after an idle time, of a length in ``first_prompt``. There are none
    if decodes run all the time.
    """

    max_cells: int  # cells that an iteration computes at most
    first_prompt: Spread  # tokens of a prompt that ends an idle time
    seconds: FloatArray  # [kind] duration of an iteration
    left_over: FloatArray  # [first_prompt, size] distribution of the cells that remain of it

    def after_idle(self, arrivals: FloatArray) -> FloatArray:
        """Return the distribution of waiting cells one iteration after an empty queue, ``[size]``.

        ``arrivals [kind, size]`` is the distribution of the cells that arrive during an iteration.
        """
        if not self.first_prompt.values.size:
            return np.asarray(arrivals[0])
        # The sum of the cells left over and of those that arrive: a product of transforms.
        transform = np.fft.rfft(self.left_over) * np.fft.rfft(arrivals[self.max_cells + 1 :])
        after = np.fft.irfft(transform, self.left_over.shape[1])
        return np.maximum(self.first_prompt.weights @ after, 0.0)

    def time_spent(self, waiting: FloatArray) -> FloatArray:
        """Return the mean seconds per iteration, by its kind and the cells left over at its end.

        The shape is ``[kind, size]``: column i has the iterations that leave i cells. ``waiting
        [size]`` is the distribution of the cells that wait at the start of an iteration.
        """
        time_by_kind = np.zeros((len(self.seconds), self.left_over.shape[1]))
        last = self.max_cells
        # Kinds in the order of the class: all cells fit, a full iteration, a prompt after idling.
        time_by_kind[:last, 0] = waiting[:last] * self.seconds[:last]
        full = waiting[last:] * self.seconds[last]
        time_by_kind[last, : full.size] = full
        first_s = waiting[0] * self.first_prompt.weights * self.seconds[last + 1 :]
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
    mean_isl = float(isl.mean())
    spare = iterations.budget - rate * iterations.full_s * mean_isl  # tokens of a full iteration
    if spare <= 0:
        return None
    grid = _grid_of(iterations.budget, _longest_queue(iterations, workload, spare))
    if grid.cells > MOST_CELLS:
        return None
    kinds = _kinds_of(iterations, isl, running_s, grid)

    # 1. Cells that wait at the start of an iteration, ``[cells + 1]``.
    # Tokens that arrive in T seconds are compound Poisson, with transform exp(rate T (phi - 1)).
    # Powers of that of an eighth of an iteration take a tenth of the time of exponentials.
    lengths = np.fft.rfft(_length_distribution(isl / grid.cell_tokens, grid.size)) - 1.0
    eighth = np.exp(rate * MOMENTS[0] * kinds.seconds[:, None] * lengths)
    arrivals = np.maximum(np.fft.irfft(((eighth**2) ** 2) ** 2, grid.size), 0.0)  # [kind, size]
    waiting = _stationary_distribution(
        arrivals, kinds.after_idle(arrivals), grid.cells, grid.cells_per_iteration
    )

    # 2. Shares of all time, ``[kind of the running iteration, cells left over]``.
    time_shares = kinds.time_spent(waiting)
    idle_s = waiting[0] / max(rate, 1e-12) if running_s == 0 else 0.0  # mean, per iteration
    time_shares /= idle_s + time_shares.sum()
    busy_share = float(time_shares.sum())
    time_shares /= max(busy_share, 1e-300)  # conditional on a running iteration
    likely = time_shares.sum(axis=1) > MIN_PROBABILITY

    # 3. Delays: of prompts that begin at once, and of those that find an iteration running.
    # Later prompts share the last iteration of a prompt that began at once.
    later_tokens = rate * mean_isl * iterations.full_s * iterations.full_iterations(isl)
    others_s = iterations.all_s(isl, later_tokens) - iterations.all_s(isl)
    delays = NO_DELAY, NO_DELAY, NO_DELAY
    if likely.any():
        delays = _delays_in_iteration(
            iterations, workload, time_shares[likely], kinds.seconds[likely], running_s,
            grid.cell_tokens, eighth[likely],
        )  # fmt: skip
    return Delays(busy_share, *delays, float(others_s.mean()))


def _grid_of(budget: float, longest_queue: float) -> _Grid:
    """Return the grid for a queue of up to ``longest_queue`` tokens.

    A cell is a ``CELLS``-th of an iteration, smaller for short queues and larger for long ones.
    """
    wanted_tokens = max(min(budget, longest_queue / 4.0) / CELLS, longest_queue / LONGEST)
    cells_per_iteration = max(int(budget / wanted_tokens), 1)
    cell_tokens = budget / cells_per_iteration
    return _Grid(cell_tokens, cells_per_iteration, int(np.ceil(longest_queue / cell_tokens)))


def _kinds_of(iterations: Iterations, isl: FloatArray, running_s: float, grid: _Grid) -> _Kinds:
    """Return the kinds of iterations for prompts of ``isl`` tokens.

    ``running_s`` are the seconds of an iteration without prompts; 0: the instance idles instead.
    """
    first_prompt = Spread(np.zeros(0), np.zeros(0))
    if running_s == 0:
        first_prompt = thin(spread(isl), FIRST_POINTS)
    max_cells = min(grid.cells_per_iteration, grid.cells)
    waiting_tokens = np.arange(1.0, max_cells + 1.0) * grid.cell_tokens
    seconds = np.concatenate(
        [[running_s], iterations.seconds(waiting_tokens), iterations.seconds(first_prompt.values)]
    )
    left_tokens = np.maximum(first_prompt.values - iterations.budget, 0.0)
    left_over = _on_two_cells(left_tokens / grid.cell_tokens, grid.size)
    return _Kinds(max_cells, first_prompt, seconds, left_over)


def _on_two_cells(means: FloatArray, size: int) -> FloatArray:
    """Return a distribution ``[size]`` with each of the ``means``, on the two nearest numbers."""
    distributions = np.zeros((len(means), size))
    rows, lower = np.arange(len(means)), np.floor(means).astype(np.int64)
    distributions[rows, lower + 1] = means - lower
    distributions[rows, lower] = 1.0 - (means - lower)
    return distributions


def _delays_in_iteration(
    iterations: Iterations,
    workload: Workload,
    waiting: FloatArray,
    iteration_s_by_kind: FloatArray,
    running_s: float,
    cell_tokens: float,
    eighth: npt.NDArray[np.complex128],
) -> tuple[Spread, Spread, Spread]:
    """Return ``start_wait``, ``first_token`` and ``by_earlier`` of ``Delays``.

    ``waiting [kind, size]`` is the probability of each kind of running iteration and number of
    waiting cells. ``running_s`` are the seconds of an iteration without prompts. ``eighth`` is the
    transform of the arrivals in an eighth of an iteration of each kind.
    """
    isl = workload.facts.prefill_points
    own_length = thin(spread(isl), OWN_POINTS)
    length = own_length.values[:, None]  # tokens of the prompt, [length, 1]
    alone_s = iterations.all_s(length)
    arriving_tokens_s = workload.rate * float(isl.mean())
    # Lists by moment in the running iteration at which a prompt arrives. Their arrays are [length
    # of the prompt, state that it meets], flattened. A state is a kind and the cells ahead.
    waits_s, delays_s, earlier_delays_s, weights = [], [], [], []
    # Transform of the cells that wait at a moment: those at the start, and arrivals since then.
    # The first moment is an eighth into the iteration, each further one a quarter later.
    transform, quarter = np.fft.rfft(waiting) * eighth, eighth**2
    for moment in MOMENTS:
        probability = np.fft.irfft(transform, waiting.shape[1])  # [kind, cells ahead of a prompt]
        transform *= quarter
        kind, cells = np.nonzero(probability >= min(MIN_PROBABILITY, float(probability.max())))
        tokens_ahead = cells * cell_tokens
        tokens_with_own = tokens_ahead + length  # [length, state]
        running_iteration_s = iteration_s_by_kind[kind]
        remaining_s = (1.0 - moment) * running_iteration_s

        full_before = np.floor(tokens_ahead / iterations.budget + 1e-9)
        wait_s = remaining_s + full_before * iterations.full_s
        # Due to earlier prompts: those of the running iteration, and those that wait.
        running_prompts_s = (1.0 - moment) * np.maximum(running_iteration_s - running_s, 0.0)
        earlier_s = running_prompts_s + iterations.all_s(tokens_with_own) - alone_s
        # Later prompts join the last iteration.
        full_s = iterations.full_iterations(tokens_with_own) * iterations.full_s
        later_tokens = arriving_tokens_s * (remaining_s + full_s)
        delay_s = remaining_s + iterations.all_s(tokens_with_own, later_tokens) - alone_s

        waits_s.append(np.broadcast_to(wait_s, delay_s.shape).ravel())
        delays_s.append(delay_s.ravel())
        earlier_delays_s.append(np.maximum(earlier_s, 0.0).ravel())
        weights.append((probability[kind, cells] * own_length.weights[:, None]).ravel())
    weight = np.concatenate(weights)
    return (
        spread_of_many(np.concatenate(waits_s), weight),
        spread_of_many(np.concatenate(delays_s), weight),
        spread_of_many(np.concatenate(earlier_delays_s), weight),
    )


def _iteration_times(profile: Profile, workload: Workload, decodes: float) -> Iterations:
    """Return the iteration times with ``decodes`` decodes, by the number of prompt tokens."""
    budget = max(profile.max_batch_tokens - decodes, 1.0)
    knots = np.linspace(0.0, budget, TIME_KNOTS)
    tokens = np.append(min(1.0, budget), knots[1:])  # without tokens there is no prefill
    context = decodes * workload.facts.decode_context
    seconds = iteration_s(profile, decodes, context, tokens, tokens * workload.facts.keys)
    return Iterations(budget, knots, seconds)


def _longest_queue(iterations: Iterations, workload: Workload, spare: float) -> float:
    """Return a number of waiting tokens that is hardly ever exceeded.

    ``spare`` is the budget of a full iteration less the tokens that arrive in it. The bound for
    short queues is used if it is below the budget of an iteration, else that for long queues.
    """
    isl, rate = workload.facts.prefill_points, workload.rate
    mean_square, longest = float((isl**2).mean()), float(isl[-1])
    tokens_s = rate * float(isl.mean())
    # Short queues: tokens that arrive during an iteration, which computes those before them.
    arriving = longest
    for _ in range(ARRIVING_STEPS):
        before, arriving = arriving, tokens_s * iterations.seconds_of_one(arriving)
        if abs(arriving - before) <= MAX_RELATIVE_STEP * arriving:
            break
    # Change of the arrivals by one more token in the iteration before
    growth_s = iterations.full_s - float(iterations.took_s[0])
    feedback = min(tokens_s * growth_s / iterations.budget, 0.99)
    longest_s = iterations.seconds_of_one(arriving + longest)
    variance = rate * longest_s * mean_square / (1.0 - feedback**2)
    short_queue = float(arriving + 2.0 * longest + DEVIATIONS_ABOVE_MEAN * np.sqrt(variance))
    if short_queue < iterations.budget:
        return short_queue
    # Long queues decay exponentially, as a random walk with this ratio of variance to drift.
    decay_tokens = rate * iterations.full_s * mean_square / (2.0 * spare)
    return float(iterations.budget + longest - np.log(IGNORED_PROBABILITY) * decay_tokens)


def _length_distribution(lengths: FloatArray, size: int) -> FloatArray:
    """Return the distribution of prompt lengths in whole cells, ``[size]``.

    ``lengths`` are in cells. Each is divided between the two nearest whole numbers.
    """
    lower = np.floor(lengths).astype(np.int64)
    upper_share = lengths - lower
    counts = np.bincount(lower, 1.0 - upper_share, size)
    counts = counts + np.bincount(lower + 1, upper_share, size)
    return np.asarray(counts / len(lengths), np.float64)


@cached_kernel
def _stationary_distribution(arrivals: Any, after_idle: Any, cells: int, computed: int) -> Any:
    """Return the distribution of waiting cells at an iteration's start, ``[cells + 1]``.

    A cell is a fixed number of prompt tokens. An iteration that starts with n cells computes
    k = min(n, ``computed``) of them. The cells that arrive meanwhile have the distribution
    ``arrivals[k]``. If n is 0, the next number has the distribution ``after_idle``. A state is n.
    Probability beyond ``cells`` goes to the last state. States are eliminated from the end
    (Grassmann, Taksar and Heyman 1985), which needs no subtraction.
    """
    size = cells + 1
    # Transition probabilities from ``now`` waiting cells to ``then``, one iteration later. ``left``
    # are the cells that the iteration does not compute, so ``then`` is at least that.
    steps = np.zeros((size, size))
    for now in range(size):
        left = max(now - computed, 0)
        added = after_idle if now == 0 else arrivals[min(now, min(computed, cells))]
        inside = 0.0
        for then in range(left, size):
            steps[now, then] = added[then - left]
            inside += steps[now, then]
        steps[now, cells] += max(1.0 - inside, 0.0)
    # Remove the states from the end: paths through ``last`` become steps between lower states.
    below = np.ones(size)  # probability to step from a state to any lower one
    for last in range(cells, 0, -1):
        left = max(last - computed, 0)
        total = 0.0
        for then in range(left, last):
            total += steps[last, then]
        below[last] = max(total, 1e-300)
        for now in range(last):
            share = steps[now, last] / below[last]
            if share > 0.0:
                for then in range(left, last):
                    steps[now, then] += share * steps[last, then]
    # Add the states again: what enters a state from lower ones leaves it to lower ones.
    probability = np.zeros(size)
    probability[0] = 1.0
    for last in range(1, size):
        total = 0.0
        for now in range(last):
            total += probability[now] * steps[now, last]
        probability[last] = total / below[last]
    return probability / probability.sum()
