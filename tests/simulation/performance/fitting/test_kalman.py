"""Online tuning: it finds what the service does, follows it, and is not fooled by one bad value."""

from dataclasses import replace

import numpy as np
import pytest

from simulation.errors import SimulationError
from simulation.performance.fitting.fit_linear import least_squares
from simulation.performance.fitting.kalman import Observations, tune
from simulation.performance.linear import LinearProfile
from simulation.performance.specs import Provenance

TRUE = np.array([8e-3, 2.4e-4, 1.2e-2, 6e-5])


def profile(parameters):
    alpha, beta, gamma, delta = parameters
    return LinearProfile(
        "m", "g", 1, alpha, beta, gamma, delta, 256, 2048, 10**6, Provenance("assumed", "a guess")
    )


def seconds(parameters, b, p):
    alpha, beta, gamma, delta = np.asarray(parameters).T
    base = np.maximum(np.where(b > 0, alpha, 0), np.where(p > 0, gamma, 0))
    return base + beta * b + delta * p


def watched(parameters, count=400, noise=0.03, seed=1):
    """Pure decodes, pure prefills and mixed iterations in turn, one a second."""
    random = np.random.default_rng(seed)
    b = random.integers(1, 128, count).astype(float)
    p = random.integers(64, 2048, count).astype(float)
    kind = np.arange(count) % 3
    b[kind == 1], p[kind == 0] = 0, 0
    took = seconds(parameters, b, p) * np.exp(noise * random.standard_normal(count))
    return Observations(np.arange(count, dtype=float), b, p, took)


def test_true_parameters_are_found_and_lie_in_their_intervals():
    tuned = tune(profile(TRUE * [1.4, 0.7, 0.75, 1.35]), watched(TRUE))
    estimated = np.array([p.value for p in tuned.parameters])
    assert estimated == pytest.approx(TRUE, rel=0.04)
    assert all(p.low < true < p.high for p, true in zip(tuned.parameters, TRUE, strict=True))
    assert tuned.used.mean() > 0.98
    eigenvalues = np.linalg.eigvalsh(tuned.covariance)
    assert (eigenvalues > 0).all()
    assert tuned.profile.alpha_s == tuned.parameters[0].value


def test_without_drift_it_comes_to_what_least_squares_gives():
    seen = watched(TRUE, count=3000)
    tuned = tune(profile(TRUE * 1.3), seen)
    pure = seen.prefill_tokens == 0
    design = np.column_stack([np.ones(pure.sum()), seen.decodes[pure]])
    weight = 1 / seen.seconds[pure]
    line = least_squares(
        design * weight[:, None], np.ones(pure.sum()), np.arange(pure.sum())[:, None]
    )
    assert [p.value for p in tuned.parameters[:2]] == pytest.approx(line.values.tolist(), rel=0.03)


def test_a_slow_drift_is_tracked():
    count = 2400
    path = TRUE * (1 + 0.5 * np.linspace(0, 1, count))[:, None]
    seen = watched(path, count)
    seen = replace(seen, at_s=seen.at_s * 600)
    tuned = tune(profile(TRUE), seen)
    assert tuned.history[-1] == pytest.approx(path[-1], rel=0.08)


def test_one_outlier_changes_nothing():
    seen = watched(TRUE)
    spoiled = seen.seconds.copy()
    spoiled[200] *= 20
    bad = Observations(seen.at_s, seen.decodes, seen.prefill_tokens, spoiled)
    tuned = tune(profile(TRUE), bad)
    assert not tuned.used[200]
    assert (tuned.history[200] == tuned.history[199]).all()
    clean = tune(profile(TRUE), seen).history[-1]
    assert tuned.history[-1] == pytest.approx(clean, rel=0.01)


def test_a_lasting_jump_is_believed_after_a_while():
    before, after = watched(TRUE, 200), watched(TRUE * 2.5, 400, seed=2)
    both = Observations(
        np.arange(600.0),
        *(
            np.concatenate([getattr(before, n), getattr(after, n)])
            for n in ("decodes", "prefill_tokens", "seconds")
        ),
    )
    tuned = tune(profile(TRUE), both)
    assert not tuned.used[200]
    assert tuned.history[-1] == pytest.approx(TRUE * 2.5, rel=0.15)


def test_parameters_stay_positive_whatever_comes():
    random = np.random.default_rng(3)
    count = 500
    seen = Observations(
        np.arange(count) * 600.0,
        random.integers(0, 300, count) + 1.0,
        random.integers(0, 3000, count).astype(float),
        10 ** random.uniform(-9, 2, count),
    )
    tuned = tune(profile(TRUE), seen)
    assert (tuned.history > 0).all()
    assert np.isfinite(tuned.history).all()
    assert (np.linalg.eigvalsh(tuned.covariance) > 0).all()


def test_a_phase_that_is_never_seen_keeps_its_values():
    seen = watched(TRUE)
    pure = seen.prefill_tokens == 0
    only = Observations(
        *(getattr(seen, n)[pure] for n in ("at_s", "decodes", "prefill_tokens", "seconds"))
    )
    tuned = tune(profile(TRUE * 1.3), only)
    assert [p.value for p in tuned.parameters[2:]] == pytest.approx((TRUE * 1.3)[2:].tolist())
    assert tuned.covariance[3, 3] == pytest.approx(0.3**2, rel=1e-3)


def test_stopping_and_going_on_is_the_same_as_not_stopping():
    seen = watched(TRUE)

    def part(which):
        return Observations(
            *(getattr(seen, n)[which] for n in ("at_s", "decodes", "prefill_tokens", "seconds"))
        )

    at_once = tune(profile(TRUE * 1.2), seen)
    first = tune(profile(TRUE * 1.2), part(slice(0, 150)))
    rest = tune(first.profile, part(slice(150, None)), first.covariance)
    assert rest.history[-1] == pytest.approx(at_once.history[-1], rel=1e-5)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"seconds": np.array([0.1, -0.1])}, "above 0"),
        ({"at_s": np.array([1.0, 0.0])}, "Sort"),
        ({"decodes": np.array([1.0])}, "one length"),
        ({"decodes": np.array([np.nan, 1.0])}, "finite"),
    ],
)
def test_bad_observations_are_refused_in_a_sentence(change, word):
    good = {
        "at_s": np.arange(2.0),
        "decodes": np.ones(2),
        "prefill_tokens": np.zeros(2),
        "seconds": np.full(2, 0.01),
    }
    with pytest.raises(SimulationError, match=word):
        Observations(**{**good, **change})
    with pytest.raises(SimulationError, match="beta = 0"):
        tune(profile([1e-3, 0, 1e-3, 1e-5]), Observations(**good))


def test_decodes_alone_leave_prefill_as_it_is_however_the_parameters_are_correlated():
    mixed = tune(profile(TRUE), watched(TRUE))
    b = np.tile([4.0, 32.0, 96.0], 60)
    took = 1.4 * seconds(TRUE, b, np.zeros(b.size))
    alone = Observations(np.arange(b.size, dtype=float), b, np.zeros(b.size), took)
    tuned = tune(mixed.profile, alone, covariance=mixed.covariance)
    assert np.abs(mixed.covariance[:2, 2:]).max() > 0
    assert tuned.profile.gamma_s == pytest.approx(mixed.profile.gamma_s, rel=1e-12)
    assert tuned.profile.delta_s == pytest.approx(mixed.profile.delta_s, rel=1e-12)
    assert tuned.profile.alpha_s > 1.2 * mixed.profile.alpha_s
    assert (np.linalg.eigvalsh(tuned.covariance) > 0).all()
