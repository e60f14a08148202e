"""The table profile: interpolation on measured grids of whole iterations.

Measured rows seldom form full grids: Splitwise and SageServe vary one size at a time, around 512
tokens and one sequence. So a table is filled as follows.

- Repeats: the median counts. Rows that did not run as one batch are dropped
  (``BenchmarkRows.ran_as_one_batch``).
- Prefill over (tokens of the iteration, keys per token): rows form families. A family is the single
  prompts, or the batches of prompts of one length. Each family is made to rise with its tokens
  (isotonic) and is interpolated by monotone cubics in log-log. A family without a row at some
  number of tokens takes the value of another family, scaled by their ratio at the neighbours.
  Between families the time is linear in the keys, and beyond them constant. It is not monotone in
  the keys, as many short prompts may take longer than a long one.
- Decode over (sequences, mean context): time rises with both. An unmeasured pair of the two gets a
  term of the sequences plus a term of the context, fitted to the measured pairs by least squares.
- Beyond the last knot, decode continues with its last slope, made to rise with the other size. A
  prefill continues with its last slope in the tokens.

``measured_range`` excludes iterations beyond the knots, and those further than a factor ``NEAR`` in
keys or context from any row.
"""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simulation.arrays import BoolArray, FloatArray
from simulation.errors import SimulationError
from simulation.performance.curves import ANY, Curve, Part, grid
from simulation.performance.monotone import finer, interpolate, isotonic, medians, rising
from simulation.performance.rows import BenchmarkRows

# Knots added between two measured ones, so that a bilinear table follows the cubics
ADDED_KNOTS = 3
NEAR_FACTOR = 2.0  # ratio of keys per token, or of context, up to which a row counts as near
SAME_CONTEXT = 1.05  # contexts within this ratio are one knot
MAX_SIZE = 400  # different configurations in a table


@dataclass(frozen=True, slots=True, eq=False)
class PrefillPoints:
    """Prefill seconds by tokens of a batch: single prompts, or prompts of one length."""

    tokens: FloatArray
    keys: FloatArray  # per token
    seconds: FloatArray
    weights: FloatArray  # rows behind each point

    def at(self, tokens: FloatArray) -> FloatArray:
        """Return the seconds at ``tokens``, interpolated between the points."""
        return interpolate(self.tokens, self.seconds, tokens)


def table_curve(rows: BenchmarkRows) -> Curve:
    """Return the seconds of iterations as a curve through the rows of one arrangement.

    A mixed iteration saves one reading of the weights, estimated by the cheapest iteration.
    """
    rows = rows.take(rows.ran_as_one_batch & rows.has_numbers_in("batch", "isl"))
    decode = _decode(rows.take(rows.has_numbers_in("tbt_s", "context")))
    prefill = _prefill(rows.take(rows.has_numbers_in("prefill_s")))
    overlap = min(decode.seconds.min(), prefill.seconds.min())
    return grid(decode=decode, prefill=prefill, overlap_s=float(overlap))


def _prefill(rows: BenchmarkRows) -> Part:
    """Return the prefill part of the curve: seconds by tokens, and by keys per token.

    A family is the single prompts, or the batches of prompts of one length. Each gives a line of
    seconds over tokens. Between the lines, seconds are interpolated over the keys.
    """
    if not rows.rows:
        raise SimulationError(
            "A table needs rows with batch, isl and the prefill time of that batch; there are none."
        )
    points, seconds, weights = _sizes(rows.batch, rows.isl, seconds=rows.prefill_s)
    families = _share_points(_families(points, seconds, weights))
    knots = finer(np.unique(np.concatenate([family.tokens for family in families])), ADDED_KNOTS)
    keys = np.unique(np.concatenate([family.keys for family in families]))
    is_used = _reaches(families, knots)  # [families, knots], as the next two
    seconds_at = np.array(
        [family.at(np.clip(knots, family.tokens[0], family.tokens[-1])) for family in families]
    )
    keys_at = np.array([np.interp(knots, family.tokens, family.keys) for family in families])

    # At each knot, interpolate over the keys of the families that reach it.
    table = np.empty((knots.size, keys.size))
    low, high = np.empty(knots.size), np.empty(knots.size)
    for i in range(knots.size):
        used = np.flatnonzero(is_used[:, i])
        by_keys = used[np.argsort(keys_at[used, i], kind="stable")]
        known_keys = keys_at[by_keys, i]
        table[i] = np.interp(keys, known_keys, seconds_at[by_keys, i])
        low[i], high[i] = known_keys[0] / NEAR_FACTOR, known_keys[-1] * NEAR_FACTOR
    table = np.column_stack([isotonic(column, np.ones(knots.size)) for column in table.T])
    # Repeat the last column: a part extrapolates with its last slope, which must be 0 in the keys.
    keys = np.append(keys, 2 * keys[-1])
    table = np.column_stack([table, table[:, -1]])
    return Part(knots, keys, table, low=low, high=high)


def _reaches(families: list[PrefillPoints], knots: FloatArray) -> BoolArray:
    """Return whether a family reaches a knot of tokens, ``[families, knots]``.

    A knot that none reaches counts as reached by the nearest family.
    """
    first = np.array([family.tokens[0] for family in families])[:, None]
    last = np.array([family.tokens[-1] for family in families])[:, None]
    distance = np.log(np.maximum(first / knots, knots / last))  # 0 or less within a family
    return np.asarray(distance <= np.maximum(distance.min(axis=0), 1e-9))


def _sizes(*columns: FloatArray, seconds: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the distinct rows of ``columns``, and the median and count of ``seconds`` for each.

    Raises SimulationError if there are more than MAX_SIZE.
    """
    distinct, middle, counts = medians(np.column_stack(columns), seconds)
    if len(distinct) > MAX_SIZE:
        raise SimulationError(
            f"The rows hold {len(distinct):,} different sizes and a table at most {MAX_SIZE:,}. "
            "Round batch, isl and osl, or fit a linear profile."
        )
    return distinct, middle, counts


def _families(points: FloatArray, seconds: FloatArray, weights: FloatArray) -> list[PrefillPoints]:
    """Group ``points [n, 2]`` (batch, prompt tokens) into families, see the module's docstring.

    Points of a prompt length that was measured with one batch only form families by batch.
    """
    batch, isl = points[:, 0], points[:, 1]
    # Masks of points: single prompts, prompts of one length with several batches, other batches.
    masks = [batch == 1]
    for length in np.unique(isl):
        if np.unique(batch[isl == length]).size > 1:
            masks.append(isl == length)
    other = ~np.any(masks, axis=0)
    masks += [other & (batch == size) for size in np.unique(batch[other])]
    columns = np.stack([batch * isl, isl / 2, np.log(seconds), weights])
    return [_rising_points(*columns[:, mask]) for mask in masks if mask.any()]


def _rising_points(
    tokens: FloatArray, keys: FloatArray, log_seconds: FloatArray, weights: FloatArray
) -> PrefillPoints:
    """Return points in any order as a family, with seconds made to rise with the tokens.

    ``tokens`` are those of the batch. ``keys`` are per token.
    """
    order = np.argsort(tokens, kind="stable")
    seconds = np.exp(isotonic(log_seconds[order], weights[order]))
    return PrefillPoints(tokens[order], keys[order], seconds, weights[order])


def _share_points(families: list[PrefillPoints]) -> list[PrefillPoints]:
    """Return the families, each with more points: those in its range that other families measured.

    The time of the other family is multiplied by the ratio of the two, interpolated between the
    points that both measured. With several other families, the geometric mean counts.
    """
    result = []
    for family in families:
        added_logs: dict[float, list[float]] = defaultdict(list)  # log seconds of others, by tokens
        for other in families:
            if other is not family:
                for tokens, log_seconds in _points_from(other, family):
                    added_logs[tokens].append(log_seconds)
        all_tokens = np.append(family.tokens, list(added_logs))
        mean_logs = [np.mean(logs) for logs in added_logs.values()]
        all_logs = np.append(np.log(family.seconds), mean_logs)
        keys = np.interp(all_tokens, family.tokens, family.keys)
        weights = np.append(family.weights, np.ones(len(added_logs)))
        result.append(_rising_points(all_tokens, keys, all_logs, weights))
    return result


def _points_from(other: PrefillPoints, family: PrefillPoints) -> list[tuple[float, float]]:
    """Return tokens and log seconds of the points that ``other`` adds to ``family``."""
    common = np.intersect1d(family.tokens, other.tokens)
    if common.size < 2:
        return []
    missing = np.setdiff1d(other.tokens, family.tokens)
    missing = missing[(missing > common[0]) & (missing < common[-1])]
    log_ratio = np.log(family.at(common) / other.at(common))
    log_ratio_at_missing = np.interp(np.log(missing), np.log(common), log_ratio)
    log_seconds = np.log(other.at(missing)) + log_ratio_at_missing
    return list(zip(missing.tolist(), log_seconds.tolist(), strict=True))


def _decode(rows: BenchmarkRows) -> Part:
    """Return the decode part of the curve: seconds by sequences, and by mean context."""
    if not rows.rows:
        raise SimulationError(
            "A table needs rows with batch, isl, osl and the time between tokens; there are none. "
            "Rows of a served deployment fit a linear, operator or roofline profile."
        )
    contexts = _knots(rows.context)
    distance = np.abs(np.log(rows.context)[:, None] - np.log(contexts))
    nearest_context = distance.argmin(axis=1)  # index into contexts, of each row
    points, seconds, counts = _sizes(rows.batch, nearest_context, seconds=rows.tbt_s)
    batches, batch_index = np.unique(points[:, 0], return_inverse=True)
    cells = batch_index, points[:, 1].astype(int)  # measured ones of a table [batches, contexts]

    # Fill the other cells, then refine the batches: tables [batches, contexts], [knots, contexts].
    by_batch = _fill_cells((batches.size, contexts.size), cells, seconds, counts)
    knots = finer(batches, ADDED_KNOTS)
    by_knot = np.column_stack([interpolate(batches, column, knots) for column in by_batch.T])
    by_knot = np.maximum.accumulate(by_knot, axis=1)  # cubics of two columns may cross

    # The measured contexts at each batch.
    low, high = np.full(batches.size, np.inf), np.full(batches.size, -np.inf)
    np.minimum.at(low, cells[0], contexts[cells[1]] / NEAR_FACTOR)
    np.maximum.at(high, cells[0], contexts[cells[1]] * NEAR_FACTOR)
    # Add knots at twice the measured range with slopes that keep time rising in both sizes. At the
    # added batch, low > high: no context was measured there.
    return Part(
        np.append(knots, 2 * knots[-1]),
        np.append(contexts, 2 * contexts[-1]),
        _extend_column(contexts, _extend_column(knots, by_knot.T).T),
        low=np.append(np.interp(knots, batches, low), ANY),
        high=np.append(np.interp(knots, batches, high), -ANY),
    )


def _extend_column(y: FloatArray, table: FloatArray) -> FloatArray:
    """Return ``table`` with a further column, at twice the last ``y``.

    Each row continues with the steepest last slope of this and earlier rows. With their own slopes,
    rows could cross beyond the last column.
    """
    if y.size == 1:
        return np.column_stack([table, table])
    slope = (table[:, -1] - table[:, -2]) / (y[-1] - y[-2])
    return np.column_stack([table, table[:, -1] + np.maximum.accumulate(slope) * y[-1]])


def _knots(contexts: FloatArray) -> FloatArray:
    """Return the distinct contexts; those within ``SAME_CONTEXT`` become one, their median."""
    merged: list[list[float]] = []
    for context in np.unique(contexts).tolist():
        if merged and context <= merged[-1][0] * SAME_CONTEXT:
            merged[-1].append(context)
        else:
            merged.append([context])
    return np.array([float(np.median(group)) for group in merged])


def _fill_cells(
    shape: tuple[int, int],
    cells: tuple[npt.NDArray[np.int_], npt.NDArray[np.int_]],
    seconds: FloatArray,
    counts: FloatArray,
) -> FloatArray:
    """Return a table of ``shape`` that rises with both sizes, from ``seconds`` of measured cells.

    ``cells`` are their row and column indices, ``counts`` their weights. An unmeasured cell is a
    row term plus a column term, fitted to the measured ones by weighted least squares.
    """
    (rows, columns), (row, column) = shape, cells
    design = np.hstack([np.eye(rows)[row], np.eye(columns)[column]])  # a row term, a column term
    root_weight = np.sqrt(counts)
    terms = np.linalg.lstsq(design * root_weight[:, None], seconds * root_weight, rcond=None)[0]
    estimated_s = np.maximum(terms[:rows, None] + terms[rows:], seconds.min())
    estimated_s[cells] = seconds
    # Unmeasured cells yield to measured ones when the table is made to rise.
    weights = np.full(shape, 1e-3)
    weights[cells] = counts
    return rising(estimated_s, weights)
