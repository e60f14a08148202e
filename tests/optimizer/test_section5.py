"""The program in PuLP: its rows and objective, and its optimum beside that of arrays."""

import re

import pytest

from bench.field.power import larger_problem
from planner.optimizer import solve_window
from planner.optimizer.objective import start_price
from planner.optimizer.program.section5 import window_program
from tests.optimizer.problems import (
    problem,
    random_problem,
)


@pytest.mark.parametrize("seed", [17, 18, 19, 20])
def test_larger_problems_with_power_limits_have_one_optimum(seed):
    instance = larger_problem(seed)
    plans = [solve_window(instance, gap=0.0, method=name) for name in ("pulp", "whole")]
    assert plans[0].status == plans[1].status
    assert plans[0].objective_usd == pytest.approx(plans[1].objective_usd)


def test_it_holds_the_constraints_of_the_source_by_name():
    """Two models, two regions and two columns: rows of section 5, and the GPUs of a region."""
    rows = window_program(problem()).program.constraints()
    families = [re.sub(r"(_\d+)+$", "", row.name) for row in rows]
    count = {family: families.count(family) for family in set(families)}
    facets = {family: count.pop(family) for family in list(count) if family.startswith("facet")}
    assert sum(facets.values()) > 0
    assert count == {"starts": 8, "local_coverage": 4, "global_coverage": 2, "capacity": 4}


def test_its_objective_is_that_of_the_source_and_the_cost_of_the_present_fleet():
    """gamma + mu + sum alpha n, from section 5."""
    instance = random_problem(3)
    plan = solve_window(instance, gap=0.0, method="pulp")
    delta = plan.target - instance.current
    gamma = (instance.usd_per_hour * delta).sum()
    mu = (start_price(instance) * delta.clip(0)).sum()
    present = (instance.usd_per_hour * instance.current).sum()
    assert plan.objective_usd == pytest.approx(gamma + mu + present)
