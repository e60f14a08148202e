"""The result of the replay of a stream, and its figures."""

from dataclasses import dataclass

import numpy as np

from simulation.arrays import Array, FloatArray
from simulation.metrics import GroupSummary, Summary, hourly_attainment, summary_of
from simulation.results import ANSWER_TOKENS, Replay
from simulation.stream.tally import Tally


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StreamResult(Replay):
    """One policy replayed on a stream; ``tally`` has sums instead of requests."""

    began_s: float  # UTC epoch seconds of time 0
    models: tuple[str, ...]  # names in the trace, as are regions and tiers
    regions: tuple[str, ...]
    tiers: tuple[str, ...]
    tally: Tally
    last_due_s: float  # latest time at which a request is due

    @property
    def start_s(self) -> float:
        """Return the UTC epoch seconds of time 0."""
        return self.began_s

    @property
    def groups(self) -> Array:
        """Return the index in the tally of each group, ``[model, region, tier]``."""
        shape = (len(self.models), len(self.regions), len(self.tiers))
        return np.arange(np.prod(shape)).reshape(shape)

    def attention(self, p: int) -> FloatArray:
        """Return the attention work of the requests served by pool ``p``, ``[4]``.

        If the pool completed none, it is that of all requests of its model.
        """
        sums: FloatArray = self.tally.served[p]
        if not sums[ANSWER_TOKENS]:  # so it completed no request
            model = self.models.index(self.fleet.pools[p].model)
            sums = self.tally.asked[self.groups[model].ravel()].sum(axis=0)
        return sums


def summarise_stream(result: StreamResult) -> Summary:
    """Return the figures of ``metrics.summarise``; percentiles are within ``tally.ERROR``."""
    groups, tally = result.groups, result.tally
    total = _group(result, groups)
    tiers = {name: _group(result, groups[:, :, t]) for t, name in enumerate(result.tiers)}
    models: dict[str, dict[str, GroupSummary]] = {}
    for model, by_region in zip(result.models, groups, strict=True):
        summaries = [_group(result, tier_groups) for tier_groups in by_region]
        models[model] = dict(zip(result.regions, summaries, strict=True))
    arrived, met = np.moveaxis(tally.hours, -1, 0)
    hours = hourly_attainment(arrived, met, result.tiers, result.fleet.tiers)
    tokens_in_time = result.cells * int(tally.in_time.sum())
    return summary_of(result, total, tiers, models, hours, tokens_in_time)


def _group(result: StreamResult, groups: Array) -> GroupSummary:
    """Return one summary of all requests in ``groups``, indices in the tally."""
    tally, rows = result.tally, groups.ravel()
    outcomes = result.cells * tally.outcomes[rows].sum(axis=0)
    completed, rejected, unfinished, not_due = outcomes.tolist()
    inputs, outputs = (result.cells * tally.tokens[rows].sum(axis=0)).tolist()
    arrived = int(outcomes.sum())
    due = arrived - not_due
    return GroupSummary(
        arrived=arrived,
        completed=completed,
        rejected=rejected,
        unfinished=unfinished,
        attainment=result.cells * int(tally.met[rows].sum()) / due if due else None,
        input_tokens=inputs,
        output_tokens=outputs,
        ttft_ms=tally.percentiles(rows, 0),
        tbt_ms=tally.percentiles(rows, 1),
        e2e_ms=tally.percentiles(rows, 2),
        not_due=not_due,
    )
