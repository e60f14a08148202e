"""The program written by PuLP: what another solver reads from it has the same optimum."""

import highspy
import pytest

from planner.optimizer.problem import single_period
from planner.optimizer.program.search import draft_program
from planner.optimizer.solvers.cbc import as_pulp
from tests.optimizer.problems import best_by_counting, random_columns, random_problem

CASES = [
    made(seed)
    for made in (random_problem, random_columns)
    for seed in range(6)
    if best_by_counting(made(seed)) is not None
]


@pytest.mark.parametrize("suffix", ["mps", "lp"])
@pytest.mark.parametrize("case", range(len(CASES)))
def test_what_is_written_has_the_optimum_that_counting_finds(case, suffix, tmp_path):
    lp = as_pulp(draft_program(single_period(CASES[case]), cuts=False).builder.program())
    path = tmp_path / f"plan.{suffix}"
    (lp.writeMPS if suffix == "mps" else lp.writeLP)(str(path))
    highs = highspy.Highs()
    highs.setOptionValue("output_flag", False)
    highs.readModel(str(path))
    highs.run()
    best = highs.getInfo().objective_function_value
    assert best == pytest.approx(best_by_counting(CASES[case]), rel=1e-4, abs=1e-3)
