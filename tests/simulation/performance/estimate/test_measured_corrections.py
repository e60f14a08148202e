"""Laws of what measurements of one's own say, and systems worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest

from planner.inputs import catalogue
from planner.inputs.catalogue.estimate_calibration import estimate_fit
from simulation.performance.estimate.defaults import Deployment
from simulation.performance.estimate.measured_corrections import (
    LEVELS,
    ErrorCovariance,
    compare_traits,
    contradictions,
    learn_corrections,
    traits_of,
)
from simulation.performance.specs import Arrangement
from tools.catalogue.fit_likeness import fit_likeness

FIT = estimate_fit().alike
ONE = Deployment(
    catalogue.shape("llama-3.1-8b"), catalogue.gpu("H100-SXM"), Arrangement(),
    isl=1024.0, osl=256.0, concurrency=32.0, version="0.19.0",
)  # fmt: skip
ELSEWHERE = replace(ONE, gpu=catalogue.gpu("B200"))
OTHER_MODEL = replace(ONE, shape=catalogue.shape("qwen3-32b"))
OTHER_ENGINE = replace(OTHER_MODEL, gpu=catalogue.gpu("B200"), engine="trtllm")
NONE = np.zeros(0, np.int64)
PLAIN = ErrorCovariance(
    **dict.fromkeys(LEVELS, 0.0), load=0.0, users=1, isl=1, osl=1, gpus=1, noise=0.1, split=1.0
)


@pytest.mark.parametrize("name", ["tbt", "ttft"])
def test_no_rows_move_nothing(name: str) -> None:
    where = traits_of([ONE, ELSEWHERE])
    moved = learn_corrections(FIT[name].likeness, where.take(NONE), np.zeros(0)).at(where)
    assert not moved.shift.any()
    assert (moved.after == moved.before).all()


@pytest.mark.parametrize("name", ["tbt", "ttft"])
def test_the_more_alike_the_further_a_row_moves_and_the_less_is_left_unsure(name: str) -> None:
    where = traits_of([ONE, replace(ONE, concurrency=256.0), ELSEWHERE, OTHER_ENGINE])
    loads = traits_of([replace(ONE, concurrency=users) for users in (16.0, 32.0, 64.0)])
    moved = learn_corrections(FIT[name].likeness, loads, np.full(3, 0.3)).at(where)
    assert 0.3 > moved.shift[0] > moved.shift[1] > moved.shift[2] > moved.shift[3] >= 0.0
    assert (moved.after <= moved.before).all()
    assert (np.diff(moved.after[:3]) > 0).all()


@pytest.mark.parametrize("name", ["tbt", "ttft"])
def test_a_row_that_nothing_confirms_moves_its_own_arrangement_alone(name: str) -> None:
    wider = replace(ONE, decode=Arrangement(tp=2))
    where = traits_of([ONE, replace(ONE, concurrency=256.0), wider, ELSEWHERE])
    moved = learn_corrections(FIT[name].likeness, traits_of([ONE]), np.array([0.3])).at(where)
    assert 0.3 > moved.shift[0] > moved.shift[1] > 0.0
    assert not moved.shift[2:].any()
    assert (moved.after[2:] == moved.before[2:]).all()


def test_a_row_that_nothing_confirms_says_less_of_a_load_further_away() -> None:
    likeness = replace(PLAIN, arrangement=0.3, reach=2.0)
    loads = traits_of([replace(ONE, concurrency=32.0 * np.exp(apart)) for apart in (0.0, 2.0, 4.0)])
    moved = learn_corrections(likeness, traits_of([ONE]), np.array([0.2])).at(loads)
    assert moved.shift == pytest.approx(moved.shift[0] * np.exp([0.0, -1.0, -2.0]))
    assert (np.diff(moved.after) > 0).all()
    assert (moved.stated == moved.before).all()


def test_rows_that_agree_no_more_with_each_other_than_with_none_move_nothing() -> None:
    loads = traits_of([replace(ONE, concurrency=float(4**n)) for n in range(3)])
    likeness = replace(PLAIN, deployment=0.3)
    learnt = learn_corrections(likeness, loads, np.array([1.2, 0.0, 0.0]))
    assert (learnt.belief < 0.5).all() and not learnt.weight.any()
    moved = learnt.at(loads)
    assert not moved.shift.any() and (moved.after > 0.0).all()


def test_many_rows_that_agree_are_believed_and_one_that_does_not_is_not() -> None:
    loads = [replace(ONE, concurrency=float(2**n)) for n in range(8)]
    off = np.full(8, 0.4)
    learnt = FIT["tbt"].likeness
    sure = learn_corrections(learnt, traits_of(loads), off).at(traits_of([ONE])).shift[0]
    assert sure == pytest.approx(0.4, abs=0.05)
    off[3] = -1.2
    pulled = learn_corrections(learnt, traits_of(loads), off).at(traits_of([ONE])).shift[0]
    assert abs(pulled - 0.4) < 0.12


def test_two_rows_by_hand() -> None:
    """One shared part of variance 0.04 beside noise of 0.01: the mean of both, shrunk."""
    likeness = replace(PLAIN, deployment=0.2)
    rows = traits_of([ONE, replace(ONE, concurrency=1.0)])
    common = likeness.covariance(compare_traits(rows, rows))
    assert common == pytest.approx(np.full((2, 2), 0.04))
    assert likeness.variance(rows) == pytest.approx(0.05)
    learnt = learn_corrections(likeness, rows, np.array([0.2, 0.2]))
    # reweighting leaves both the same weight w: 0.2 * 2 / (2 + 0.25 / w)
    shift = learnt.at(rows).shift
    assert shift[0] == pytest.approx(shift[1])
    assert 0.2 * 2 / 2.4 < shift[0] < 0.2 * 2 / 2.15


def test_rows_that_do_not_predict_each_other_are_hardly_believed() -> None:
    loads = [replace(ONE, concurrency=float(4**n)) for n in range(6)]
    off = np.array([0.5, -0.5, 0.5, -0.5, 0.5, -0.5])
    learnt = learn_corrections(replace(PLAIN, deployment=1.0), traits_of(loads), off)
    assert learnt.outlier_weights.keys() == {*traits_of([ONE]).labels["deployment"].tolist()}
    assert abs(learnt.at(traits_of([ONE])).shift[0]) < 0.05


def test_rows_that_predict_each_other_in_part_are_believed_in_part() -> None:
    """The further rows lie apart, the less of their mean is believed and the more stays unsure."""
    loads = traits_of([replace(ONE, concurrency=float(4**n)) for n in range(6)])
    likeness = replace(PLAIN, deployment=0.3)
    sign = np.array([1.0, -1.0, 1.0, -1.0, 1.0, -1.0])
    agreed, apart, torn = (
        learn_corrections(likeness, loads, 0.3 + far * sign) for far in (0.02, 0.2, 0.45)
    )
    assert 1.0 > agreed.belief[0] > 0.95 > apart.belief[0] > torn.belief[0] > 0.0
    moved = [likeness_of.at(loads) for likeness_of in (agreed, apart)]
    assert (moved[0].shift > moved[1].shift).all() and (moved[1].shift > 0.0).all()
    assert (moved[0].after < moved[1].after).all() and (moved[1].after <= moved[1].before).all()


@pytest.mark.parametrize("name", ["tbt", "ttft"])
def test_left_out_rows_are_not_further_from_what_the_others_say_than_from_nothing(
    name: str,
) -> None:
    """Over errors of any size and kind, leaving each row out in turn; a tenth is left to chance."""
    random = np.random.default_rng(3)
    loads = traits_of([replace(ONE, concurrency=float(2**n)) for n in range(8)])
    for _ in range(40):
        level, scale = random.normal(0.0, 0.3), random.uniform(0.02, 0.6)
        off = level + scale * random.standard_t(3.0, loads.size)
        learnt = learn_corrections(FIT[name].likeness, loads, off)
        left = np.minimum(np.abs(np.expm1(learnt.leave_one_out_errors() - learnt.log_errors)), 0.5)
        assert left.mean() <= 1.1 * np.minimum(np.abs(np.expm1(-learnt.log_errors)), 0.5).mean()


def test_an_unknown_version_is_like_no_other() -> None:
    likeness = replace(PLAIN, version=0.3)
    unknown = replace(ONE, version="")
    rows = traits_of([unknown, unknown, ONE, ELSEWHERE])
    between = likeness.covariance(compare_traits(rows, rows))
    assert not between[:2].any() and not between[:, :2].any()
    assert between[2, 3] == pytest.approx(0.09)  # the same version on another GPU


def test_releases_that_compute_the_same_are_one_model() -> None:
    names = ("deepseek-v3", "deepseek-r1")
    both = traits_of([replace(ONE, shape=catalogue.shape(name)) for name in names])
    assert len(set(both.labels["model"].tolist())) == 1


def test_the_fit_finds_what_deployments_share() -> None:
    """Rows drawn from a known sum of parts: engines differ much, GPUs do not."""
    random = np.random.default_rng(1)
    deployments = [
        replace(ONE, gpu=catalogue.gpu(gpu), shape=catalogue.shape(model), version=version,
                concurrency=float(2**n))
        for gpu in ("H100-SXM", "B200", "H200")
        for model in ("llama-3.1-8b", "qwen3-32b", "llama-3.1-70b")
        for version in ("1", "2", "3", "4")
        for n in (0, 3, 6)
    ]  # fmt: skip
    traits = traits_of(deployments)
    shift = dict(zip("1234", (0.5, -0.5, 0.3, -0.3), strict=True))
    off = np.array([shift[row.version] for row in deployments])
    learned = fit_likeness(traits, off + 0.02 * random.standard_normal(off.size))
    assert learned.version > 0.2 > max(learned.gpu, learned.model)


LENGTHS = ((1024.0, 256.0), (16384.0, 256.0))


def test_rows_that_agree_at_their_own_lengths_speak_of_those() -> None:
    """Prompts of one length half as slow again, of another as estimated: neither moves the other,
    as the mean of both would."""
    rows = [
        replace(ONE, isl=isl, osl=osl, concurrency=float(2**n))
        for isl, osl in LENGTHS
        for n in range(4)
    ]
    off = np.repeat([0.0, 0.4], 4)
    likeness = replace(PLAIN, load=0.3, users=10.0)
    learnt = learn_corrections(likeness, traits_of(rows), off)
    where = traits_of([replace(ONE, isl=isl, osl=osl, concurrency=24.0) for isl, osl in LENGTHS])
    near, far = learnt.at(where).shift
    assert abs(near) < 0.1 < 0.3 < far < 0.5


def test_rows_of_two_deployments_under_one_description_narrow_nothing_and_are_named() -> None:
    loads = [replace(ONE, concurrency=float(4**n)) for n in range(4)]
    off = np.array([0.0, 0.02, -0.01, 0.0, -0.8])
    rows = traits_of([*loads, loads[1]])
    likeness = FIT["tbt"].likeness
    assert contradictions(likeness, rows, off) == [(1, 4)]
    torn = learn_corrections(likeness, rows, off).at(rows)
    assert torn.after == pytest.approx(torn.before)
    agreed = traits_of(loads)
    assert not contradictions(likeness, agreed, off[:4])
    assert (learn_corrections(likeness, agreed, off[:4]).at(rows).after < torn.after).all()
