"""More or fewer requests than a trace has."""

from pathlib import Path

import numpy as np
import pytest

from planner.domain.traffic.changes import with_times_requests
from tests.planner.domain.replay.test_backtest_windows import days


@pytest.mark.parametrize("share", [0.8, 1.25, 3.5])
def test_so_many_times_the_requests_at_about_their_times(tmp_path: Path, share: float) -> None:
    trace = days(tmp_path).trace
    stray = with_times_requests(trace, share, 60.0, np.random.default_rng(0))
    assert len(stray) == pytest.approx(share * len(trace), rel=0.05)
    assert (np.diff(stray.arrival_s) >= 0).all()
    assert stray.arrival_s[0] >= 0 and stray.arrival_s[-1] <= trace.arrival_s[-1]
    counts = [np.histogram(requests.arrival_s, bins=4)[0] for requests in (trace, stray)]
    np.testing.assert_allclose(counts[1], share * counts[0], rtol=0.2)
