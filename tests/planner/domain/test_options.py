"""Options of runs: declared once, kept to their kind, refused in words."""

import re

import pytest

from planner.domain.kinds import compare, place, plan
from planner.domain.kinds.registry import KINDS
from planner.domain.options import options_in, options_of
from planner.errors import OptionsRefused
from planner.models import Run
from tests.planner.domain import builders as make


def test_every_kind_but_the_reading_of_a_file_is_declared() -> None:
    assert set(KINDS) == {*Run.Kind.values} - {Run.Kind.INGEST}


@pytest.mark.parametrize("name", KINDS)
def test_an_option_of_another_kind_is_refused(name: str) -> None:
    others = {option for kind in KINDS.values() for option in options_in(kind.options)}
    known = options_in(KINDS[name].options)
    for option in sorted(others - known.keys()):
        with pytest.raises(OptionsRefused, match=f"{option}: this is not known here"):
            options_of(KINDS[name].options, {option: 1})


@pytest.mark.parametrize(
    ("policies", "sentence"),
    [
        (["nope"], r"policies nope: there is no policy 'nope'. Choose from .*, or all\."),
        ("lt-i", r"policies lt-i: give a list of 1 to 100\."),
        ([], r"policies: give a list of 1 to 100\."),
        (["lt-i"] * 101, r"policies: give a list of 1 to 100\."),
    ],
)
def test_a_list_is_refused_in_one_sentence(policies: object, sentence: str) -> None:
    with pytest.raises(OptionsRefused) as refused:
        options_of(compare.Options, {"policies": policies})
    assert re.fullmatch(sentence, str(refused.value)), str(refused.value)


@pytest.mark.parametrize("name", KINDS)
def test_every_option_has_words_for_its_form_and_its_table(name: str) -> None:
    for option in options_in(KINDS[name].options).values():
        assert option.label and option.help and option.remedy
        assert option.type != "string" or option.choices or option.longest
        assert option.type not in ("integer", "number") or option.most is not None


def test_what_was_left_out_is_not_kept() -> None:
    chosen = options_of(plan.Options, {"gap": "0.01"})
    assert chosen.explicit_values() == {"gap": 0.01}
    assert options_of(place.Options, {"ratio": ["1", "2"]}).explicit_values() == {"ratio": [1, 2]}


def test_a_plan_takes_its_objective_from_its_options() -> None:
    scenario = make.scenario()
    changed = plan.with_objective(scenario, plan.Options(time_limit_s=1.5, minimise="carbon"))
    assert (changed.objective.time_limit_s, changed.objective.minimise) == (1.5, "carbon")
    assert changed.objective.gap == scenario.objective.gap
    assert plan.with_objective(scenario, plan.Options()).objective == scenario.objective
