"""Sources on one time line: shares, scale, labels, gaps, totals and every refusal."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from planner.domain.kinds import plan
from planner.domain.outcome import Inputs
from planner.domain.progress import silent
from planner.domain.results.basis import unused_traffic_warning
from planner.domain.traffic.sources import StoredTrace
from planner.domain.traffic.traffic import MEASURED, SYNTHESISED, Traffic, build_traffic
from planner.domain.traffic.window import resolve_window
from planner.errors import ScenarioError
from tests.planner.domain import builders as make

TWO_REGIONS = [
    {"name": "east", "capacity": {"G": 32}, "usd_per_gpu_hour": {"G": 2}, "carbon_g_per_kwh": 400},
    make.WEST,
]
TWO_TIERS = [{"name": "chat", "ttft_ms": 1000}, {"name": "slow", "ttft_ms": 60000}]
LENGTHS = {"input_tokens": {"mean": 100}, "output_tokens": {"mean": 10}}


def traffic_of(
    stored: StoredTrace, sources: list[dict[str, Any]] | None = None, **more: Any
) -> Traffic:
    changes = {"traffic": {"sources": sources or [make.source()]}} | more
    return build_traffic(make.traffic_settings(**changes), {"t": stored})


def refusal(stored: StoredTrace, source: dict[str, Any], **more: Any) -> str:
    with pytest.raises(ScenarioError) as error:
        traffic_of(stored, [source], **more)
    return str(error.value)


def everything(traffic: Traffic) -> Any:
    return traffic.requests(traffic.demand.start_s, traffic.demand.end_s, 0)


# Requests as they were measured


def test_requests_come_back_as_they_are_in_the_file(tmp_path: Path) -> None:
    arrival_s = np.arange(0.0, 600.0, 0.5)
    traffic = traffic_of(make.request_file(tmp_path, arrival_s, isl=np.arange(len(arrival_s)) + 1))
    assert traffic.replay == MEASURED and traffic.clock == "utc"
    requests = traffic.requests(make.EPOCH + 60, make.EPOCH + 120, seed=9)
    assert requests.start_s == make.EPOCH + 60
    np.testing.assert_allclose(requests.arrival_s, np.arange(0.0, 60.0, 0.5), atol=1e-5)
    assert requests.input_tokens.tolist() == list(range(121, 241))


def test_shares_hold_on_average_and_a_share_of_one_exactly(tmp_path: Path) -> None:
    stored = make.request_file(tmp_path, make.steady(20, 1000))
    shares = {"east": 0.7, "west": 0.3}
    traffic = traffic_of(stored, [make.source(regions=shares, tiers={"slow": 1})],
                  regions=TWO_REGIONS, tiers=TWO_TIERS)  # fmt: skip
    trace = traffic.measured
    assert len(trace) == 20_000
    assert (trace.region == 0).mean() == pytest.approx(0.7, abs=4 * np.sqrt(0.21 / 20_000))
    assert (trace.tier == 1).all()


def test_shares_that_sum_to_one_only_nearly_are_taken_in_proportion(tmp_path: Path) -> None:
    stored = make.request_file(tmp_path, make.steady(2, 600))
    traffic = traffic_of(stored, [make.source(regions={"east": 0.3333333, "west": 0.6666666})],
                  regions=TWO_REGIONS)  # fmt: skip
    assert len(traffic.measured) == 1200


@pytest.mark.parametrize("scale", [1, 2, 3])
def test_whole_scale_repeats_every_request_exactly(tmp_path: Path, scale: int) -> None:
    arrival_s = make.steady(3, 1200)
    lengths = np.arange(len(arrival_s)) + 1
    traffic = traffic_of(
        make.request_file(tmp_path, arrival_s, isl=lengths), [make.source(scale=scale)]
    )
    assert np.bincount(traffic.measured.input_tokens)[1:].tolist() == [scale] * len(arrival_s)
    assert traffic.measured.arrival_s.min() >= 0 and traffic.measured.arrival_s.max() <= 1200.001


@pytest.mark.parametrize("scale", [0.1, 0.5, 1.7])
def test_fractional_scale_holds_on_average(tmp_path: Path, scale: float) -> None:
    arrival_s = make.steady(10, 2000)
    traffic = traffic_of(make.request_file(tmp_path, arrival_s), [make.source(scale=scale)])
    spread = np.sqrt(len(arrival_s) * (scale % 1) * (1 - scale % 1))
    assert len(traffic.measured) == pytest.approx(scale * len(arrival_s), abs=4 * spread)
    assert any("scaled" in note for note in traffic.notes)


def test_labels_of_the_file_are_used_where_the_scenario_leaves_them_out(tmp_path: Path) -> None:
    arrival_s = np.arange(0.0, 300.0)
    west = np.arange(len(arrival_s)) % 3 == 0
    stored = make.request_file(
        tmp_path, arrival_s, region=np.where(west, "west", "east"), tier=["chat"] * len(arrival_s)
    )
    traffic = traffic_of(stored, [make.source(regions=None, tiers=None)], regions=TWO_REGIONS,
                  tiers=TWO_TIERS)  # fmt: skip
    np.testing.assert_array_equal(traffic.measured.region == 1, west)
    assert (traffic.measured.tier == 0).all()


def test_series_picks_one_model_label_of_a_request_file(tmp_path: Path) -> None:
    arrival_s = np.arange(0.0, 300.0)
    model = np.where(np.arange(len(arrival_s)) % 4 == 0, "gpt-4", "gpt-3")
    stored = make.request_file(tmp_path, arrival_s, model=model)
    traffic = traffic_of(stored, [make.source(series="gpt-4")])
    assert len(traffic.measured) == 75
    message = refusal(stored, make.source(series="gpt-5"))
    assert "traffic.sources[0].series" in message and "gpt-4" in message


def test_a_file_that_ends_early_ends_the_study_and_says_so(tmp_path: Path) -> None:
    """Two request files are two sources: silence after one has ended is not demand of zero."""
    long = make.request_file(tmp_path, make.steady(2, 1800), name="long")
    short = make.request_file(tmp_path, make.steady(2, 900, seed=1), name="short")
    sources = [make.source(), make.source(trace="u")]
    traffic = build_traffic(
        make.traffic_settings(traffic={"sources": sources}), {"t": long, "u": short}
    )
    assert traffic.demand.end_s == make.EPOCH + 900
    assert "The study ends where the first of its sources ends." in traffic.notes
    ahead = resolve_window(make.settings(horizon={"start": "end"}).window, traffic.demand)
    (note,) = unused_traffic_warning(ahead, traffic)
    assert "0.25 h" in note
    assert unused_traffic_warning(replace(ahead, after_traffic=False), traffic) == []
    alone = build_traffic(make.traffic_settings(traffic={"sources": sources[:1]}), {"t": long})
    assert unused_traffic_warning(ahead, alone) == []


def test_a_file_that_begins_later_leaves_a_gap_not_a_zero(tmp_path: Path) -> None:
    early = make.request_file(tmp_path, make.steady(2, 1800), name="early")
    late = make.request_file(
        tmp_path, make.steady(2, 900, 1), start_s=make.EPOCH + 600, name="late"
    )
    sources = [make.source(), make.source(trace="u")]
    traffic = build_traffic(
        make.traffic_settings(traffic={"sources": sources}), {"t": early, "u": late}
    )
    gaps = np.isnan(traffic.demand.requests[0])
    assert gaps.tolist() == [True] * 10 + [False] * 15


def test_first_bin_of_which_little_was_seen_is_a_gap(tmp_path: Path) -> None:
    arrival_s = make.steady(2, 600)
    cut = traffic_of(make.request_file(tmp_path, arrival_s, start_s=make.EPOCH + 30, name="a"))
    full = traffic_of(make.request_file(tmp_path, arrival_s, start_s=make.EPOCH + 1, name="b"))
    assert np.isnan(cut.demand.requests[0, 0]) and not np.isnan(cut.demand.requests[0, 1])
    assert not np.isnan(full.demand.requests).any()


# Demand files


@pytest.mark.parametrize(("last_s", "bins"), [(3599.0, 60), (3598.0, 60), (3590.0, 59)])
def test_log_that_ends_just_before_its_last_bin_does_has_that_bin(
    tmp_path: Path, last_s: float, bins: int
) -> None:
    arrival_s = np.append(np.arange(0.0, 3540.0, 1.0), last_s)
    stored = make.request_file(tmp_path, arrival_s)
    demand = traffic_of(stored, traffic={"sources": [make.source()], "bin_s": 60}).demand
    assert demand.bins == bins
    assert np.nansum(demand.requests) == (3541 if bins == 60 else 3540)


def counts(bins: int, seed: int = 0) -> list[float]:
    return np.random.default_rng(seed).poisson(30, bins).astype(float).tolist()


def test_synthesised_requests_reproduce_every_bin_exactly(tmp_path: Path) -> None:
    values = counts(30)
    traffic = traffic_of(make.demand_file(tmp_path, {"a": values}), [make.source(**LENGTHS)])
    assert traffic.replay == SYNTHESISED
    trace = everything(traffic)
    assert np.bincount((trace.arrival_s // 60).astype(int)).tolist() == values
    assert traffic.demand.requests[0].tolist() == values


def test_tokens_of_the_file_are_kept_per_bin(tmp_path: Path) -> None:
    values = counts(20)
    tokens = {
        "input_tokens": {"a": [137.0 * v + 5 for v in values]},
        "output_tokens": {"a": [11.0 * v + 1 for v in values]},
    }
    traffic = traffic_of(make.demand_file(tmp_path, {"a": values}, tokens=tokens))
    trace = everything(traffic)
    place = (trace.arrival_s // 60).astype(int)
    assert np.bincount(place, trace.input_tokens).tolist() == tokens["input_tokens"]["a"]
    assert np.bincount(place, trace.output_tokens).tolist() == tokens["output_tokens"]["a"]
    assert traffic.demand.input_tokens[0].tolist() == tokens["input_tokens"]["a"]


def test_plan_and_replay_see_the_same_tokens_where_file_and_scenario_both_say(
    tmp_path: Path,
) -> None:
    values = counts(20)
    tokens = {"input_tokens": {"a": [400.0 * v for v in values]}}
    lengths = {"input_tokens": {"mean": 50, "cv": 0.5}, "output_tokens": {"mean": 10}}
    traffic = traffic_of(
        make.demand_file(tmp_path, {"a": values}, tokens=tokens), [make.source(**lengths)]
    )
    assert traffic.demand.input_tokens.sum() == 400 * sum(values)
    assert everything(traffic).input_tokens.sum() == 400 * sum(values)
    assert traffic.lengths[0][0].mean() == pytest.approx(400, rel=0.05)


def test_a_series_counts_as_zero_outside_its_own_bins(tmp_path: Path) -> None:
    """A study ended with the first series of a file, and could not begin before the last."""
    spans = {"whole": range(120), "early": range(30), "late": range(100, 120)}
    rows = [(make.EPOCH + 60 * minute, name, 10) for name, span in spans.items() for minute in span]
    path = tmp_path / "demand.csv"
    pl.DataFrame(rows, schema=["time", "series", "requests"], orient="row").write_csv(path)
    stored = make.ingested(path, "demand", tmp_path / "store", format="demand", bin_s=60.0)
    for name, span in spans.items():
        changes = {
            "traffic": {"sources": [make.source(series=name, **LENGTHS)]},
            "horizon": {"duration_s": 3600, "period_s": 300},
        }
        traffic = build_traffic(make.traffic_settings(**changes), {"t": stored})
        counts = np.isin(np.arange(120), list(span)) * 10.0
        assert traffic.demand.requests[0].tolist() == counts.tolist()
        assert len(everything(traffic)) == counts.sum()
        planned = plan.run(Inputs(make.scenario(**changes), {"t": stored}), plan.Options(), silent)
        assert planned.document["status"] == "optimal"


def test_shares_and_scale_of_a_demand_file(tmp_path: Path) -> None:
    values = counts(200)
    source = make.source(scale=0.5, regions={"east": 0.8, "west": 0.2}, **LENGTHS)
    traffic = traffic_of(make.demand_file(tmp_path, {"a": values}), [source], regions=TWO_REGIONS)
    index = make.by_key(traffic.demand)
    east = traffic.demand.requests[index["m", "east", "chat"]]
    np.testing.assert_allclose(east, 0.4 * np.array(values))
    trace = everything(traffic)
    assert (trace.region == 0).sum() == pytest.approx(0.4 * sum(values), abs=4 * np.sqrt(200 / 4))
    assert (trace.region == 1).sum() == pytest.approx(0.1 * sum(values), abs=4 * np.sqrt(200 / 4))


def test_gaps_stay_gaps_and_give_no_requests(tmp_path: Path) -> None:
    values: list[float | None] = [5, 6, None, None, 7, 8, 9, 10]
    traffic = traffic_of(make.demand_file(tmp_path, {"a": values}), [make.source(**LENGTHS)])
    assert np.isnan(traffic.demand.requests[0]).tolist() == [v is None for v in values]
    assert np.isnan(traffic.demand.input_tokens[0]).tolist() == [v is None for v in values]
    trace = everything(traffic)
    assert np.bincount((trace.arrival_s // 60).astype(int)).tolist() == [5, 6, 0, 0, 7, 8, 9, 10]


def test_a_coarse_bin_with_a_gap_in_it_is_a_gap(tmp_path: Path) -> None:
    values: list[float | None] = [1, 2, 3, None, 5, 6, 7, 8]
    source = [make.source(**LENGTHS)]
    traffic = build_traffic(
        make.traffic_settings(traffic={"sources": source, "bin_s": 120}),
        {"t": make.demand_file(tmp_path, {"a": values})},
    )
    np.testing.assert_array_equal(traffic.demand.requests[0], [3, np.nan, 11, 15])


def test_file_of_tokens_only_has_as_many_requests_as_its_lengths_say(tmp_path: Path) -> None:
    empty: list[float | None] = [None] * 10
    tokens = {"total_tokens": {"a": [2200.0] * 10}}
    stored = make.demand_file(tmp_path, {"a": empty}, tokens=tokens)
    traffic = traffic_of(stored, [make.source(**LENGTHS)])
    np.testing.assert_allclose(traffic.demand.requests[0], 20.0)
    np.testing.assert_allclose(traffic.demand.input_tokens[0], 2000.0)
    assert len(everything(traffic)) == 200


def test_every_series_goes_to_the_model_of_its_name(tmp_path: Path) -> None:
    models = [
        {"name": n, "weight_gb": 16, "kv_bytes_per_token": 131072, "max_context": 4096}
        for n in ("chat-m", "code-m")
    ]
    profile = {"gpu": "G", "alpha_ms": 12, "beta_ms": 0.1, "gamma_ms": 12, "delta_ms": 0.06}
    profiles = [{"model": n, **profile} for n in ("chat-m", "code-m")]
    stored = make.demand_file(tmp_path, {"code-m": counts(10), "chat-m": counts(10, 1)})
    traffic = traffic_of(
        stored, [make.source(model=None, **LENGTHS)], models=models, profiles=profiles
    )
    totals = {
        key.model: traffic.demand.requests[i].sum() for i, key in enumerate(traffic.demand.keys)
    }
    assert totals == {"code-m": sum(counts(10)), "chat-m": sum(counts(10, 1))}
    with pytest.raises(ScenarioError, match=r"traffic.sources\[0\]: model 'code-m' is not known"):
        traffic_of(stored, [make.source(model=None, **LENGTHS)])


def test_same_seed_same_requests_other_seed_others(tmp_path: Path) -> None:
    stored = make.demand_file(tmp_path, {"a": counts(20)})
    first, again = (everything(traffic_of(stored, [make.source(**LENGTHS)])) for _ in range(2))
    np.testing.assert_array_equal(first.arrival_s, again.arrival_s)
    np.testing.assert_array_equal(first.input_tokens, again.input_tokens)
    traffic = traffic_of(stored, [make.source(**LENGTHS)])
    other = traffic.requests(traffic.demand.start_s, traffic.demand.end_s, seed=1)
    assert len(other) == len(first) and (other.arrival_s != first.arrival_s).any()


# Bins


def test_bin_width_follows_the_span(tmp_path: Path) -> None:
    for hours, bin_s in ((1, 60), (13, 300), (49, 900)):
        bins = hours * 60
        stored = make.demand_file(tmp_path, {"a": [5.0] * bins}, name=f"h{hours}")
        assert traffic_of(stored, [make.source(**LENGTHS)]).demand.bin_s == bin_s
    coarse = make.demand_file(tmp_path, {"a": [5.0] * 100}, bin_s=1800, name="coarse")
    assert traffic_of(coarse, [make.source(**LENGTHS)]).demand.bin_s == 1800


def test_bins_hold_whole_bins_of_every_file(tmp_path: Path) -> None:
    stored = {
        name: make.demand_file(tmp_path, {"a": [5.0] * 200}, bin_s=bin_s, name=name)
        for name, bin_s in (("t", 600.0), ("u", 900.0))
    }
    sources = [make.source(trace=name, **LENGTHS) for name in stored]
    assert (
        build_traffic(make.traffic_settings(traffic={"sources": sources}), stored).demand.bin_s
        == 1800
    )
    with pytest.raises(ScenarioError, match=r"Choose 1800\."):
        build_traffic(make.traffic_settings(traffic={"sources": sources, "bin_s": 1200}), stored)


# Refusals


def test_calendar_and_relative_times_do_not_mix(tmp_path: Path) -> None:
    dated = make.demand_file(tmp_path, {"a": counts(10)}, name="one")
    relative = make.demand_file(tmp_path, {"a": counts(10)}, start_s=0, relative=True, name="other")
    assert (dated.clock, relative.clock) == ("utc", "relative")
    sources = [make.source(**LENGTHS), make.source(trace="u", **LENGTHS)]
    with pytest.raises(ScenarioError, match="only seconds from the"):
        build_traffic(
            make.traffic_settings(traffic={"sources": sources}), {"t": dated, "u": relative}
        )


def test_sources_of_different_days_are_refused(tmp_path: Path) -> None:
    first_day = make.demand_file(tmp_path, {"a": counts(10)}, name="one")
    next_day = make.demand_file(
        tmp_path, {"a": counts(10)}, start_s=make.EPOCH + 86400, name="other"
    )
    sources = [make.source(**LENGTHS), make.source(trace="u", **LENGTHS)]
    with pytest.raises(ScenarioError, match="no time in common"):
        build_traffic(
            make.traffic_settings(traffic={"sources": sources}), {"t": first_day, "u": next_day}
        )
    requests = [make.request_file(tmp_path, make.steady(2, 600), start_s=make.EPOCH + d * 86400,
                                  name=f"day{d}") for d in (0, 1)]  # fmt: skip
    sources = [make.source(), make.source(trace="u")]
    with pytest.raises(ScenarioError, match="no time in common"):
        build_traffic(
            make.traffic_settings(traffic={"sources": sources}),
            {"t": requests[0], "u": requests[1]},
        )


@pytest.mark.parametrize(("bin_s", "choose"), [(90, 120), (45, 60)])
def test_bins_that_are_not_whole_file_bins_are_refused(
    tmp_path: Path, bin_s: float, choose: int
) -> None:
    stored = make.demand_file(tmp_path, {"a": counts(30)})
    with pytest.raises(ScenarioError, match=rf"traffic.bin_s: {bin_s} s .* Choose {choose}\."):
        build_traffic(
            make.traffic_settings(traffic={"sources": [make.source(**LENGTHS)], "bin_s": bin_s}),
            {"t": stored},
        )


@pytest.mark.parametrize("wanted", [{"traffic": {"bin_s": 15}}, {"horizon": {"period_s": 15}}])
def test_decisions_and_bins_may_be_shorter_than_those_of_a_file(
    tmp_path: Path, wanted: dict[str, dict[str, float]]
) -> None:
    stored = make.demand_file(tmp_path, {"a": counts(30)})
    changes = {
        **wanted,
        "traffic": {"sources": [make.source(**LENGTHS)], **wanted.get("traffic", {})},
    }
    traffic = build_traffic(make.traffic_settings(**changes), {"t": stored})
    whole = build_traffic(
        make.traffic_settings(traffic={"sources": [make.source(**LENGTHS)]}), {"t": stored}
    )
    assert (whole.demand.bin_s, traffic.demand.bin_s) == (60, 15)
    of_minutes = traffic.demand.requests.reshape(1, -1, 4).sum(axis=2)
    np.testing.assert_allclose(of_minutes, whole.demand.requests)
    assert any("interpolated" in note for note in traffic.notes)


def test_too_short_a_trace_is_refused(tmp_path: Path) -> None:
    stored = make.request_file(tmp_path, make.steady(2, 90))
    with pytest.raises(ScenarioError, match="less than two whole bins of 60 s"):
        traffic_of(stored)


def test_nothing_left_after_scaling_is_refused(tmp_path: Path) -> None:
    stored = make.request_file(tmp_path, np.arange(0.0, 300.0, 100.0))
    with pytest.raises(ScenarioError, match="no request is left"):
        traffic_of(stored, [make.source(scale=1e-9)])


def test_more_requests_than_can_be_replayed_are_refused(tmp_path: Path) -> None:
    stored = make.request_file(tmp_path, make.steady(2, 600))
    assert "smaller scale" in refusal(stored, make.source(scale=1e6))
    counted = make.demand_file(tmp_path, {"a": [1e12] * 10})
    traffic = traffic_of(counted, [make.source(**LENGTHS)])
    with pytest.raises(ScenarioError, match="10,000,000,000,000 requests and 50,000,000 can be"):
        everything(traffic)


def test_more_bins_than_fit_are_refused(tmp_path: Path) -> None:
    stored = make.request_file(tmp_path, np.array([0.0, 86400.0 * 365]))
    with pytest.raises(ScenarioError, match=r"traffic.bin_s: 1 s gives .* Choose a larger bin_s"):
        traffic_of(stored, traffic={"sources": [make.source()], "bin_s": 1})


def test_streams_of_random_numbers_are_apart(tmp_path: Path) -> None:
    """numpy takes [seed, 0] for the seed alone, which sizing draws from."""
    stored = make.request_file(tmp_path, make.steady(2, 600), isl=np.arange(1, 1201))
    isl, _ = traffic_of(stored).lengths[0]
    again = np.random.default_rng(make.scenario().seed).integers(0, 1200, len(isl)) + 1
    assert not np.array_equal(isl, again)


def test_a_long_trace_is_read_in_pieces_and_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A series of it, labels and gaps in them, and what is drawn for regions."""
    labels = {"model": ["m", "n"] * 400, "region": [None, "east", "west", "west"] * 200}
    stored = make.request_file(
        tmp_path, make.steady(1.0, 800), isl=list(range(1, 801)), name="labelled", **labels
    )
    shares = make.source(series="m", regions={"east": 0.4, "west": 0.6})
    labelled = make.source(series="n", regions=None)
    for source in (shares, labelled):
        scenario = make.scenario(traffic={"sources": [source]}, regions=TWO_REGIONS)
        with monkeypatch.context() as patch:
            _, at_once, _ = make.parts(scenario, stored)
            patch.setattr("simulation.arrays.BLOCK_ROWS", 7)
            _, in_pieces, _ = make.parts(scenario, stored)
        for name in ("arrival_s", "input_tokens", "output_tokens", "model", "region", "tier"):
            assert (
                getattr(at_once.measured, name).tobytes()
                == getattr(in_pieces.measured, name).tobytes()
            )
        for name in ("requests", "input_tokens", "output_tokens"):
            assert (
                getattr(at_once.demand, name).tobytes() == getattr(in_pieces.demand, name).tobytes()
            )
        assert set(at_once.measured.region.tolist()) == {0, 1} and len(at_once.measured) == 400
        assert (at_once.lengths[0][0] == in_pieces.lengths[0][0]).all()
