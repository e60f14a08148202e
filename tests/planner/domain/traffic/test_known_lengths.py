"""Lengths known at a decision: nothing from after it, and drift followed by those that come."""

from pathlib import Path

import numpy as np
import pytest

from planner.domain.outcome import Inputs
from planner.domain.preparation import study_of
from planner.domain.progress import silent
from planner.domain.sizing.sizing import Sizes, size_over_time
from planner.domain.traffic.known_lengths import (
    KnownLengths,
    known_lengths,
    traffic_with_known_lengths,
)
from planner.domain.traffic.sources import StoredTrace
from planner.domain.traffic.traffic import Traffic
from planner.domain.traffic.window import Window
from tests.planner.domain import builders as make

HOUR = 3600.0
HORIZON = {"duration_s": 4 * HOUR, "period_s": HOUR, "lead_s": 0}  # hours 4 to 8 of 8


def known(stored: StoredTrace, seed: int = 0) -> tuple[Traffic, Window, KnownLengths]:
    asked = make.scenario(horizon=HORIZON, fleet={"startup_s": 0})
    _, traffic, window = make.parts(asked, stored)
    return traffic, window, known_lengths(traffic, window, seed)


def by_hour(folder: Path, means: list[float], name: str) -> StoredTrace:
    """Eight hours of a request each 5 s, whose prompts have about this mean in each hour."""
    arrival_s = np.arange(0.0, 8 * HOUR, 5.0)
    spread = np.random.default_rng(1).uniform(0.9, 1.1, len(arrival_s))
    isl = np.repeat(means, len(arrival_s) // 8) * spread
    return make.request_file(folder, arrival_s, isl=isl.astype(np.int64), name=name)


def mean_isl(lengths: KnownLengths) -> list[float]:
    return [float(lengths.samples[s][0][0].mean()) for s in lengths.sample_of_period]


def test_without_drift_one_sample_serves_all_decisions(tmp_path: Path) -> None:
    _, _, lengths = known(by_hour(tmp_path, [500.0] * 8, "steady"))
    assert (
        len(lengths.samples) == 1
        and lengths.sample_of_period.tolist() == [0, 0, 0, 0]
        and not lengths.notes
    )


def test_what_comes_after_a_decision_changes_nothing_at_it(tmp_path: Path) -> None:
    usual = known(by_hour(tmp_path, [500.0] * 8, "usual"))[2]
    longer = known(by_hour(tmp_path, [500.0] * 6 + [1500.0] * 2, "longer"))[2]
    # Decisions at hours 4, 5 and 6 know the first six hours at most.
    for p in range(3):
        samples = usual.samples[usual.sample_of_period[p]]
        same_samples = longer.samples[longer.sample_of_period[p]]
        for sample, same in zip(samples, same_samples, strict=True):
            np.testing.assert_array_equal(sample, same)
    assert mean_isl(longer)[3] == pytest.approx(1500, rel=0.05)


def test_drift_is_followed_by_the_next_decision_and_back(tmp_path: Path) -> None:
    _, _, lengths = known(by_hour(tmp_path, [500.0] * 4 + [1500.0] + [500.0] * 3, "hour"))
    assert mean_isl(lengths) == pytest.approx([500, 1500, 500, 500], rel=0.05)
    assert len(lengths.samples) == 2  # that of the first decision again


def test_less_than_a_tenth_is_no_drift(tmp_path: Path) -> None:
    _, _, lengths = known(by_hour(tmp_path, [500.0] * 4 + [540.0] * 4, "little"))
    assert len(lengths.samples) == 1


def test_demand_files_tell_lengths_by_their_tokens(tmp_path: Path) -> None:
    requests = [100.0] * 480
    tokens = [100.0 * (400 if minute < 300 else 800) for minute in range(480)]
    stored = make.demand_file(
        tmp_path, {"a": requests},
        tokens={"input_tokens": {"a": tokens}, "output_tokens": {"a": [1000.0] * 480}},
    )  # fmt: skip
    _, _, lengths = known(stored)
    assert mean_isl(lengths) == pytest.approx([400, 400, 800, 800], rel=0.05)


def test_a_model_without_a_past_is_sized_by_what_came_and_says_so(tmp_path: Path) -> None:
    arrival_s = np.concatenate([[0.0], np.arange(4 * HOUR + 1, 8 * HOUR, 5.0)])
    stored = make.request_file(
        tmp_path, arrival_s, isl=700, model=["other"] + ["own"] * (len(arrival_s) - 1)
    )
    sources = [make.source(series="own"), make.source(series="other", model="n")]
    models = [
        {"name": name, "weight_gb": 16, "kv_bytes_per_token": 131072, "max_context": 131072}
        for name in "mn"
    ]
    profiles = [
        {"model": name, "gpu": "G", "alpha_ms": 12, "beta_ms": 0.15, "gamma_ms": 12,
         "delta_ms": 0.06}
        for name in "mn"
    ]  # fmt: skip
    asked = make.scenario(
        models=models, profiles=profiles, traffic={"sources": sources}, horizon=HORIZON,
        fleet={"startup_s": 0},
    )  # fmt: skip
    _, traffic, window = make.parts(asked, stored)
    lengths = known_lengths(traffic, window, 0)
    assert lengths.notes
    assert traffic_with_known_lengths(traffic, lengths).notes[-1] == lengths.notes[-1]


def test_sizes_follow_and_a_factor_follows_them(tmp_path: Path) -> None:
    _, _, lengths = known(by_hour(tmp_path, [500.0] * 5 + [1500.0] * 3, "sizes"))
    hardware = make.parts(make.scenario(), by_hour(tmp_path, [500.0] * 8, "any"))[0]
    sizes: Sizes = size_over_time(hardware, lengths, 0, lambda *_: None)
    assert sizes.at_period(0) is sizes and sizes.at_period(1) is sizes
    drifted = sizes.at_period(2)
    assert drifted is sizes.at_period(3) is sizes.later[0]
    # Longer prompts mean more tokens and fewer requests at once.
    each = [s.theta_tps[0, 0] / isl for s, isl in ((sizes, 500.0), (drifted, 1500.0))]
    assert each[1] < 0.5 * each[0]
    half = sizes.scaled(np.array([[0.5]]))
    np.testing.assert_allclose(half.at_period(3).theta_tps, 0.5 * drifted.theta_tps)
    assert any("Request lengths drift" in note for note in sizes.notes)


def test_a_model_keeps_the_limits_of_tiers_that_it_has_traffic_of(tmp_path: Path) -> None:
    """Not of those that others have; of one that comes later, only that is said. Which tiers there
    are besides changes no size."""
    arrival_s = np.arange(0.0, 8 * HOUR, 5.0)
    slow = {"name": "slow", "ttft_ms": 9000, "tbt_ms": 900}
    spec = {"weight_gb": 16, "kv_bytes_per_token": 131072, "max_context": 131072}
    speed = {"gpu": "G", "alpha_ms": 12, "beta_ms": 0.15, "gamma_ms": 12, "delta_ms": 0.06}
    chat = {"name": "chat", "ttft_ms": 1000, "tbt_ms": 100}

    def sized(tiers: list[str], first: str) -> tuple[list[str], list[str]]:
        """By which tier m and n are sized, where m has chat, and n ``tiers``, at first another."""
        names = np.resize(["m", *["n"] * len(tiers)], len(arrival_s))
        of = np.resize(["chat", *tiers], len(arrival_s))
        of[(names == "n") & (arrival_s < 4 * HOUR)] = first
        stored = make.request_file(
            tmp_path,
            arrival_s,
            name="-".join(tiers) + first,
            model=names.tolist(),
            tier=of.tolist(),
        )
        asked = make.scenario(
            models=[{"name": name, **spec} for name in "mn"],
            profiles=[{"model": name, **speed} for name in "mn"],
            tiers=[chat, slow, {"name": "never", "ttft_ms": 300, "tbt_ms": 30}],
            traffic={"sources": [make.source(model=None, tiers=None)]}, horizon=HORIZON,
        )  # fmt: skip
        study = study_of(Inputs(asked, {"t": stored}), silent)
        by = [study.sizes.capacity[m, 0][0] for m in range(2)]
        return by, [note for note in study.traffic.notes if "none was known before" in note]

    assert sized(["slow"], "slow") == (["chat", "slow"], [])
    assert sized(["slow", "chat"], "chat") == (["chat", "chat"], [])
    by, (note,) = sized(["slow", "chat"], "slow")
    assert by == ["chat", "slow"] and note.startswith("Requests of tier chat come for n")
