"""What was known at a moment: nothing later moves it, and what was not yet told is a gap."""

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from planner.domain.traffic.sources import StoredTrace
from planner.domain.traffic.traffic import build_traffic
from planner.domain.traffic.window import resolve_window
from planner.errors import ScenarioError
from tests.planner.domain import builders as make

HOURS = 96
COUNTS = [60 + 10 * (h % 24) + h for h in range(HOURS)]
LENGTHS = {"input_tokens": {"mean": 100}, "output_tokens": {"mean": 10}}


def moment(hours: float) -> str:
    return datetime.fromtimestamp(make.EPOCH + 3600 * hours, UTC).isoformat()


def hourly(folder: Path, counts: list[int], *, requests: bool) -> StoredTrace:
    """So many an hour, as counts or as requests spread evenly from the hour's start on."""
    folder.mkdir(exist_ok=True)
    if not requests:
        return make.demand_file(folder, {"m": counts}, bin_s=3600)
    spread = [3600 * (h + np.arange(count) / count) for h, count in enumerate(counts)]
    return make.request_file(folder, np.concatenate(spread))


def built(stored, **changes):
    asked = {"traffic__sources": [make.source(**LENGTHS)], "traffic__bin_s": 3600} | changes
    return build_traffic(make.traffic_settings(**asked), {"t": stored})


@pytest.mark.parametrize("requests", [False, True])
def test_it_is_as_if_the_rest_had_not_come(tmp_path, requests):
    """A file that goes on, cut by the scenario, is the file that ended there."""
    known = 50
    long = hourly(tmp_path / "whole", COUNTS, requests=requests)
    short = hourly(tmp_path / "short", COUNTS[:known], requests=requests)
    cut = built(long, traffic__until=moment(known))
    ended = built(short, traffic__until=moment(known))
    np.testing.assert_array_equal(cut.demand.requests, ended.demand.requests)
    assert cut.demand.end_s == ended.demand.end_s == make.EPOCH + 3600 * known
    assert not np.isnan(cut.demand.requests).any()
    for cut_sample, ended_sample in zip(cut.lengths[0], ended.lengths[0], strict=True):
        assert cut_sample.mean() == pytest.approx(ended_sample.mean(), rel=0.1)
    assert cut.expected_requests(make.EPOCH, make.EPOCH + 3600 * HOURS) == sum(COUNTS[:known])


def test_a_window_ahead_begins_there_also_where_the_source_lags(tmp_path):
    stored = hourly(tmp_path, COUNTS[:50], requests=False)
    traffic = built(stored, traffic__until=moment(53))
    assert np.isnan(traffic.demand.requests[0, 50:]).all() and traffic.demand.bins == 53
    assert "3.0 h before that were not yet known" in traffic.notes[-1]
    settings = make.settings(horizon={"start": "end", "duration_s": 7200, "period_s": 3600})
    window = resolve_window(settings.window, traffic.demand)
    assert window.after_traffic and window.start_s == make.EPOCH + 53 * 3600


@pytest.mark.parametrize(
    ("hours", "words"), [(-1, "before the traffic begins"), (HOURS + 30, "1.2 days before")]
)
def test_what_nothing_can_be_known_of_is_refused(tmp_path, hours, words):
    with pytest.raises(ScenarioError, match=f"traffic.until.*{words}"):
        built(hourly(tmp_path, COUNTS, requests=False), traffic__until=moment(hours))


def test_cached_tokens_end_where_the_data_do(tmp_path):
    """The share that a cache has is that of the known bins alone."""
    prompts = [100 * count for count in COUNTS]
    cached = [tokens / 4 if h < 50 else tokens for h, tokens in enumerate(prompts)]
    tokens = {"input_tokens": {"m": prompts}, "cached_tokens": {"m": cached}}
    stored = make.demand_file(tmp_path, {"m": COUNTS}, bin_s=3600, tokens=tokens)
    (source,) = built(stored, traffic__until=moment(50)).binned
    assert source.cached_share == pytest.approx(0.25)
