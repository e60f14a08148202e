"""Sessions of a log, from the file to scaled requests, cells, prefix blocks and figures."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from planner.domain.trace_statistics.statistics import sessions_of
from planner.domain.traffic.changes import with_times_requests
from planner.domain.traffic.drawn_days import DrawnDays, requests_of_path
from planner.domain.traffic.prefixes import SESSION_TOKENS, blocks_of_sessions
from planner.domain.traffic.sources import StoredTrace
from planner.domain.traffic.traffic import Traffic, build_traffic, merge
from planner.domain.traffic.window import Window, resolve_window
from planner.inputs.ingest.store import read_requests
from simulation.trace import PrefixBlocks, Trace, previous_turns
from tests.planner.domain import builders as make

TURNS = 6


def log(folder: Path, n: int = 1200, **more: object) -> StoredTrace:
    """Sessions of six turns, 30 s apart, with prompts that grow by 200 tokens."""
    session, turn = np.divmod(np.arange(n), TURNS)
    arrival = 10.0 * session + 30.0 * turn
    order = np.argsort(arrival, kind="stable")
    return make.request_file(
        folder, arrival[order] - arrival[0], isl=(500 + 200 * turn)[order],
        session_id=[f"chat-{s}" for s in session[order]], **more,
    )  # fmt: skip


def traffic_of(stored: StoredTrace, caching: bool = False, **source: object) -> Traffic:
    changes = {"traffic__sources": [make.source(**source)],
               "serving": [{"prefix_caching": caching}]}  # fmt: skip
    return build_traffic(make.traffic_settings(**changes), {"t": stored})


def turns_of(trace: Trace) -> dict[int, list[int]]:
    """Return the prompts of every session, in order."""
    assert trace.session is not None
    return {
        s: trace.input_tokens[trace.session == s].tolist()
        for s in np.unique(trace.session[trace.session >= 0]).tolist()
    }


WHOLE = [500 + 200 * k for k in range(TURNS)]


def test_the_file_names_sessions(tmp_path: Path) -> None:
    trace = traffic_of(log(tmp_path)).measured
    assert set(map(tuple, turns_of(trace).values())) == {tuple(WHOLE)}
    assert len(turns_of(trace)) == 200


@pytest.mark.parametrize("scale", [0.25, 2.5, 40.0])
def test_scaled_traffic_has_whole_sessions(tmp_path: Path, scale: float) -> None:
    trace = traffic_of(log(tmp_path), scale=scale).measured
    sessions = turns_of(trace)
    assert len(sessions) == pytest.approx(200 * scale, rel=0.25)
    assert all(prompts == WHOLE for prompts in sessions.values())
    assert trace.arrival_s.min() >= 0
    gaps = trace.arrival_s - trace.arrival_s[previous_turns(trace.session)]
    inside = (previous_turns(trace.session) >= 0) & (trace.arrival_s < trace.arrival_s[-1])
    assert gaps[inside] == pytest.approx(30.0)


def test_requests_without_a_session_stay_alone(tmp_path: Path) -> None:
    names = ["" if i % 2 else f"s{i % 10}" for i in range(100)]
    stored = make.request_file(tmp_path, 10 * np.arange(100.0), session_id=names)
    trace = traffic_of(stored, scale=3.0).measured
    assert (trace.session < 0).sum() == 150
    assert all(len(prompts) == 10 for prompts in turns_of(trace).values())


def test_a_file_of_single_turns_has_no_sessions(tmp_path: Path) -> None:
    stored = make.request_file(tmp_path, np.arange(300.0), session_id=np.arange(300))
    assert traffic_of(stored).measured.session is None
    assert sessions_of(stored.store) is None


def test_a_cell_has_whole_sessions(tmp_path: Path) -> None:
    traffic = traffic_of(log(tmp_path))
    start = traffic.demand.start_s
    cell = traffic.requests(start, start + 7200.0, 1, cells=4)
    assert 20 < len(turns_of(cell)) < 90
    assert all(prompts == WHOLE for prompts in turns_of(cell).values())


def test_turns_stay_in_one_region_and_tier(tmp_path: Path) -> None:
    settings = make.traffic_settings(
        regions=[{"name": "east", "capacity": {"G": 32}, "usd_per_gpu_hour": {"G": 3},
                  "carbon_g_per_kwh": 300}, make.WEST],
        traffic__sources=[make.source(regions={"east": 0.5, "west": 0.5})],
    )  # fmt: skip
    trace = build_traffic(settings, {"t": log(tmp_path)}).measured
    for session in range(200):
        assert len(set(trace.region[trace.session == session].tolist())) == 1
    assert set(trace.region.tolist()) == {0, 1}


def test_merged_traces_share_no_session(tmp_path: Path) -> None:
    trace = traffic_of(log(tmp_path)).measured
    both = merge([trace, trace], "twice")
    assert len(turns_of(both)) == 400
    assert all(prompts == WHOLE for prompts in turns_of(both).values())


def test_growing_prompts_share_their_beginning_where_caches_are_on(tmp_path: Path) -> None:
    stored = log(tmp_path)
    assert traffic_of(stored).measured.blocks is None
    trace = traffic_of(stored, caching=True, scale=2.0).measured
    blocks = trace.blocks
    assert isinstance(blocks, PrefixBlocks)
    assert blocks.block_tokens == SESSION_TOKENS
    previous = previous_turns(trace.session)
    for r in np.flatnonzero(previous >= 0)[:50].tolist():
        own, before = (
            blocks.ids[blocks.start[q] : blocks.start[q + 1]].tolist() for q in (r, previous[r])
        )
        assert own[: len(before)] == before
        assert len(own) == -(-trace.input_tokens[r] // SESSION_TOKENS)


def test_a_shorter_prompt_begins_anew() -> None:
    codes = np.zeros(4, np.int16)
    trace = Trace(np.arange(4.0), np.array([200, 300, 100, 150]), np.ones(4), codes, codes, codes,
                  ("m",), ("r",), ("t",), 0.0, session=np.array([0, 0, 0, -1]))  # fmt: skip
    blocks = blocks_of_sessions(trace)
    assert blocks is not None
    ids = [blocks.ids[blocks.start[i] : blocks.start[i + 1]].tolist() for i in range(4)]
    assert ids[1][: len(ids[0])] == ids[0]
    assert not set(ids[2]) & set(ids[1])
    assert ids[3] == []


def test_the_figures_of_sessions(tmp_path: Path) -> None:
    found = sessions_of(log(tmp_path).store)
    assert found is not None
    assert (found.sessions, found.share) == (200, 1.0)
    assert (found.turns_mean, found.turns_p50, found.turns_most) == (6.0, 6.0, 6)
    assert (found.gap_s_p50, found.growing, found.growth_p50) == (30.0, 1.0, 200.0)


def test_a_parent_links_turns(tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    path.write_text(
        "".join(
            f'{{"chat_id": {i}, "parent_chat_id": {i - 10 if i >= 10 else -1}, '
            f'"timestamp": {float(i)}, "input_length": {100 + i}, "output_length": 5, "turn": 1}}\n'
            for i in range(60)
        )
    )
    stored = make.ingested(path, "requests", tmp_path / "store")
    session = read_requests(stored.store, ("arrival_s", "session")).session
    assert session is not None
    assert session.tolist() == [i % 10 for i in range(60)]


@pytest.mark.parametrize("share", [0.5, 2.5])
def test_more_demand_has_whole_sessions(tmp_path: Path, share: float) -> None:
    trace = traffic_of(log(tmp_path, 6000)).measured
    more = with_times_requests(trace, share, 600.0, np.random.default_rng(1))
    sessions = turns_of(more)
    assert len(sessions) == pytest.approx(1000 * share, rel=0.1)
    whole = [prompts == WHOLE for prompts in sessions.values()]
    assert np.mean(whole) > 0.95  # the last ones end with the trace
    assert all(prompts == WHOLE[: len(prompts)] for prompts in sessions.values())


def test_drawn_days_have_whole_sessions(tmp_path: Path) -> None:
    n = 6 * 3000
    traffic = traffic_of(log(tmp_path, n), caching=True)
    pattern = traffic.requests(traffic.demand.start_s, traffic.demand.start_s + 14_400, 1)
    settings = make.settings_of(
        make.scenario(horizon={"duration_s": 14_400, "period_s": 3600, "lead_s": 0})
    )
    window: Window = resolve_window(settings.window, traffic.demand, traffic.clock)
    window = replace(window, start_s=pattern.start_s)
    bins = round(window.duration_s / window.bin_s)
    counts = np.bincount((pattern.arrival_s // window.bin_s).astype(int), minlength=bins)
    for factor in (0.5, 1.0, 2.5):
        days = DrawnDays(window.start_s, factor * counts[None, None, :].astype(float))
        trace = requests_of_path(traffic, window, days, 0, pattern, 1)
        assert len(trace) == pytest.approx(factor * len(pattern), rel=0.05)
        sessions = turns_of(trace)
        assert np.mean([prompts == WHOLE for prompts in sessions.values()]) > 0.9
        previous = previous_turns(trace.session)
        later = previous >= 0
        assert (trace.arrival_s - trace.arrival_s[previous])[later] == pytest.approx(30.0)
        assert isinstance(trace.blocks, PrefixBlocks)
        ids = [
            trace.blocks.ids[trace.blocks.start[r]]
            for r in np.flatnonzero(~later & (trace.session >= 0))
        ]
        assert len(set(ids)) == len(ids)  # no session begins with the prompt of another


def test_think_times_of_the_file_reach_the_replay(tmp_path: Path) -> None:
    stored = log(tmp_path, think_time_s=[12.5] * 1200)
    trace = traffic_of(stored, scale=2.5).measured
    assert trace.think_s is not None
    assert set(trace.think_s.tolist()) == {12.5}
    found = sessions_of(stored.store)
    assert found is not None
    assert (found.think_s_p50, found.think_s_p95) == (12.5, 12.5)


@pytest.mark.parametrize(("column", "value"), [("tool_gap_ms", 8000), ("think_time", 8000)])
def test_think_times_have_the_unit_of_their_name_or_of_the_gaps(
    tmp_path: Path, column: str, value: int
) -> None:
    stored = log(tmp_path, **{column: [value] * 1200})
    found = sessions_of(stored.store)
    assert found is not None
    assert found.think_s_p50 == 8.0
