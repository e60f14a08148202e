"""Build one row per candidate: aggregated instances, and prefill-decode pairs."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

import numpy as np

from simulation.arrays import FloatArray, IntArray
from simulation.search.screen import Loads
from simulation.search.values import Candidate, Instance, Requests

MOST_EACH = 8  # most prefill instances, and most decode instances, of a pair
MOST_GPUS = 64  # most GPUs of one copy of a pair; a deployment may have many copies
CLEARLY_BETTER = 1.03  # factor on the capacity per GPU for which a larger ratio is chosen
RATIOS = sorted(
    ((x, y) for x in range(1, MOST_EACH + 1) for y in range(1, MOST_EACH + 1) if gcd(x, y) == 1),
    key=sum,
)
NONE = -1
# Columns of rows of the table: prefill, decode, their numbers, rate and GPUs
Block = tuple[IntArray, IntArray, IntArray, IntArray, FloatArray, IntArray]
MISSES_TTFT = "misses the TTFT limit at every load"
MISSES_TBT = "misses the TPOT limit at every load"
MISSES_E2E = "misses the E2E limit at every load"
NO_ROOM = "weights leave no memory for one request"
TOO_MANY = f"prefill and decode need more than {MOST_GPUS} GPUs"


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Every candidate within the limits at some rate, as a row. All arrays are ``[row]``."""

    prefill: IntArray  # index of the prefill instance; NONE for an aggregated candidate
    decode: IntArray  # index of the decode or aggregated instance
    prefills: IntArray  # number of prefill instances
    decodes: IntArray  # number of decode instances
    rate: FloatArray  # requests/s of all together
    gpus: IntArray
    usd_per_hour: FloatArray

    def row(self, number: int, instances: Sequence[Instance]) -> Candidate:
        """Return the candidate of row ``number``."""
        decode, decodes = instances[int(self.decode[number])], int(self.decodes[number])
        prefill = int(self.prefill[number])
        if prefill == NONE:
            return Candidate(decode, None, 0, decodes)
        return Candidate(decode, instances[prefill], int(self.prefills[number]), decodes)


def table_of(
    instances: Sequence[Instance],
    requests: Requests,
    aggregated: Loads,
    prefill: Loads,
    decode: Loads,
) -> tuple[Table, Counter[str], int]:
    """Return the table of candidates that keep the limits at some rate, and two counts.

    They are the excluded candidates by reason, and the number of all candidates. ``aggregated``,
    ``prefill`` and ``decode`` are the loads of instances that do both, prefill, and decode. Each
    engine of an instance counts as a candidate.
    """
    ruled_out: Counter[str] = Counter()
    gpus = np.array([instance.gpus for instance in instances], np.int64)
    usd_per_gpu_hour = np.array([instance.usd_per_gpu_hour for instance in instances])

    # Aggregated instances
    can_do_both = np.array([instance.mode != "disagg" for instance in instances])
    rps = np.where(can_do_both, aggregated.largest_rates(requests), 0.0)
    for index in np.flatnonzero(can_do_both & (rps <= 0.0)).tolist():
        ruled_out[_missed_limit(aggregated, index, requests)] += len(instances[index].engines)
    blocks = [_aggregated_block(rps, gpus)]
    evaluated = candidate_count(instances)

    # Pairs; one-token answers need no decode instances.
    groups = _pairable_groups(instances) if requests.osl > 1 else []
    prefill_rps, decode_rps = prefill.largest_rates(requests), decode.largest_rates(requests)
    for group in groups:
        engines = len(instances[int(group[0])].engines)
        evaluated += engines * len(group) ** 2
        pairs = best_ratios(prefill_rps[group], gpus[group], decode_rps[group], gpus[group])
        for reason, count in _excluded_pairs(pairs, prefill_rps[group], decode_rps[group]):
            ruled_out[reason] += engines * count
        blocks.append(_block_of(pairs, group))

    prefill_rows, decode_rows, prefills, decodes, rate, total_gpus = (
        np.concatenate(column) for column in zip(*blocks, strict=True)
    )
    # Both instances of a pair have the same GPU type, so one price applies.
    usd = total_gpus * usd_per_gpu_hour[decode_rows]
    table = Table(prefill_rows, decode_rows, prefills, decodes, rate, total_gpus, usd)
    return table, +ruled_out, evaluated  # + drops counts of 0


def candidate_count(instances: Sequence[Instance]) -> int:
    """Return the number of aggregated candidates, one for each engine."""
    return sum(len(instance.engines) for instance in instances if instance.mode != "disagg")


def _pairable_groups(instances: Sequence[Instance]) -> list[IntArray]:
    """Return groups of instances that can form pairs with each other, as indices.

    The instances of a group have a link, and the same GPU type, precision and engines.
    """
    groups: dict[tuple[str, str, tuple[str, ...]], list[int]] = defaultdict(list)
    for index, instance in enumerate(instances):
        if instance.mode == "agg":
            continue
        groups[instance.gpu.name, instance.where.weights, instance.engines].append(index)
    with_link = (rows for rows in groups.values() if instances[rows[0]].link is not None)
    return [np.array(rows, np.int64) for rows in with_link]


def _missed_limit(loads: Loads, index: int, requests: Requests) -> str:
    """Return the limit that excludes instance ``index``: it misses it even with almost no load."""
    tier = requests.tier
    if not np.isfinite(loads.rate[index, 0]):
        return NO_ROOM
    if tier.ttft_s is not None and loads.ttft_s[index, 0] > tier.ttft_s:
        return MISSES_TTFT
    if tier.tbt_s is not None and loads.tbt_s[index, 0] > tier.tbt_s:
        return MISSES_TBT
    return MISSES_E2E if tier.e2e_s is not None else NO_ROOM


@dataclass(frozen=True, slots=True, eq=False)
class RatioTable:
    """The best numbers of instances of each pair, ``[prefill instance, decode instance]``."""

    rate: FloatArray  # requests/s of both pools together; 0 if no ratio fits
    prefills: IntArray
    decodes: IntArray
    gpus: IntArray


def _excluded_pairs(
    pairs: RatioTable, prefill_rps: FloatArray, decode_rps: FloatArray
) -> list[tuple[str, int]]:
    """Return the numbers of excluded pairs by reason; each pair has one."""
    fits = pairs.rate > 0.0  # [prefill, decode], as are all masks
    misses_ttft = np.broadcast_to((prefill_rps <= 0.0)[:, None], fits.shape)
    misses_tbt = np.broadcast_to((decode_rps <= 0.0)[None, :], fits.shape)
    return [
        (MISSES_TTFT, int(misses_ttft.sum())),
        (MISSES_TBT, int((misses_tbt & ~misses_ttft).sum())),
        (TOO_MANY, int((~(misses_ttft | misses_tbt | fits)).sum())),
    ]


def _aggregated_block(rps: FloatArray, gpus: IntArray) -> Block:
    """Return the columns of the aggregated instances with a rate, by ``rps [instance]``."""
    with_rate = np.flatnonzero(rps > 0.0)
    ones, no_prefill = np.ones(len(with_rate), np.int64), np.full(len(with_rate), NONE)
    return no_prefill, with_rate, ones, ones, rps[with_rate], gpus[with_rate]


def _block_of(pairs: RatioTable, group: IntArray) -> Block:
    """Return the columns of the pairs of a group of instances that fit."""
    fits = np.nonzero(pairs.rate > 0.0)
    prefill_index, decode_index = fits
    prefill, decode = group[prefill_index], group[decode_index]
    return (
        prefill, decode, pairs.prefills[fits], pairs.decodes[fits], pairs.rate[fits],
        pairs.gpus[fits],
    )  # fmt: skip


def best_ratios(
    prefill_rps: FloatArray, prefill_gpus: IntArray, decode_rps: FloatArray, decode_gpus: IntArray
) -> RatioTable:
    """Return the numbers of instances with the highest capacity per GPU, for each pair.

    ``prefill_rps`` and ``prefill_gpus`` are requests/s and GPUs of each prefill instance, the
    others those of each decode instance. x prefill and y decode instances sustain the smaller of x
    and y times their rates. Larger numbers are chosen only if their capacity per GPU is
    ``CLEARLY_BETTER`` times as high.
    """
    shape = (len(prefill_rps), len(decode_rps))
    best_per_gpu, best_rps = np.zeros(shape), np.zeros(shape)
    prefills, decodes = np.ones(shape, np.int64), np.ones(shape, np.int64)
    # Small numbers first: larger ones must beat them clearly.
    for prefill_count, decode_count in RATIOS:
        pair_rps = np.minimum.outer(prefill_count * prefill_rps, decode_count * decode_rps)
        gpus = np.add.outer(prefill_count * prefill_gpus, decode_count * decode_gpus)
        rps_per_gpu = np.where(gpus <= MOST_GPUS, pair_rps / gpus, 0.0)
        is_better = rps_per_gpu > CLEARLY_BETTER * best_per_gpu
        best_per_gpu = np.where(is_better, rps_per_gpu, best_per_gpu)
        best_rps = np.where(is_better, pair_rps, best_rps)
        prefills = np.where(is_better, prefill_count, prefills)
        decodes = np.where(is_better, decode_count, decodes)
    gpus = prefills * prefill_gpus[:, None] + decodes * decode_gpus[None, :]
    return RatioTable(best_rps, prefills, decodes, gpus)
