"""What the error of a profile does to the replica count of a plan."""

from typing import Any

import numpy as np
import pytest

from planner.domain.kinds import plan
from planner.domain.outcome import Inputs
from planner.domain.progress import silent
from planner.domain.traffic.sources import StoredTrace
from planner.domain.verification.profile_error import stated_error
from planner.errors import ScenarioError
from planner.inputs.scenario.schema import Scenario
from planner.inputs.scenario.user_facts import UserFacts
from simulation.performance.fitting.compare import INSIDE, OUTSIDE
from simulation.performance.fitting.fit import FITTED, LEFT_OUT
from simulation.performance.linear import LinearProfile
from simulation.performance.profile import Check
from simulation.performance.specs import Provenance
from tests.planner.domain import builders as make


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> StoredTrace:
    wave = 6000 + 4000 * np.sin(np.arange(40) / 8)
    return make.demand_file(tmp_path_factory.mktemp("wave"), {"a": wave.round().tolist()})


def profile(*checks: Check) -> LinearProfile:
    return LinearProfile(
        "m", "G", 1, 0.012, 0.00015, 0.012, 0.00006, 256, 2048, 400_000,
        Provenance("measured", "a test"), checks,
    )  # fmt: skip


def seen(mape: float, against: str, quantity: str = "TBT") -> Check:
    return Check(quantity, against, 10, mape, mape, mape, 0.0)


def kept(**changes: Any) -> Scenario:
    fields = {
        "profiles": [{"model": "m", "gpu": "G", "name": "mine"}],
        "traffic": {"sources": [make.source(
            input_tokens={"mean": 600}, output_tokens={"mean": 40}
        )]},
        "horizon": {"period_s": 300, "duration_s": 900},
    }  # fmt: skip
    return make.scenario(**(fields | changes))


def test_the_error_is_that_of_rows_not_seen_inside_the_range() -> None:
    fitted, left = f"{FITTED}, {INSIDE}", f"{LEFT_OUT}, {INSIDE}"
    checks = (
        seen(0.01, fitted),
        seen(0.05, left, "TBT"),
        seen(0.08, left, "prefill time"),
        seen(0.90, f"{LEFT_OUT}, {OUTSIDE}"),
    )
    stated = stated_error(profile(*checks))
    assert stated is not None
    assert stated.value == 0.08
    assert stated.basis.startswith("prefill time")
    assert stated_error(profile(checks[0])).value == 0.01  # type: ignore[union-attr]
    assert stated_error(profile()) is None


def test_slower_profiles_need_more_replicas_and_faster_ones_fewer(stored: StoredTrace) -> None:
    known = UserFacts(profiles={"mine": profile(seen(0.4, f"{LEFT_OUT}, {INSIDE}"))})
    outcome = plan.run(Inputs(kept(), {"t": stored}, known), plan.Options(), silent)
    (row,) = outcome.document["profile_error"]
    assert (row["model"], row["gpu"], row["tp"], row["error"]) == ("m", "G", 1, 0.4)
    assert row["replicas"] == max(d["target"] for d in outcome.document["decisions"])
    assert row["replicas_if_faster"] < row["replicas"] < row["replicas_if_slower"]


def test_an_unknown_error_is_said_and_nothing_is_planned_again(stored: StoredTrace) -> None:
    known = UserFacts(profiles={"mine": profile()})
    outcome = plan.run(Inputs(kept(), {"t": stored}, known), plan.Options(), silent)
    (row,) = outcome.document["profile_error"]
    assert row["error"] is None
    assert row["replicas_if_slower"] is None
    assert "not checked" in row["basis"]


def test_no_plan_when_slower_is_no_failure(stored: StoredTrace) -> None:
    """A profile four times slower cannot keep the limit: that is said, the plan stands."""
    known = UserFacts(profiles={"mine": profile(seen(9.0, f"{LEFT_OUT}, {INSIDE}"))})
    tiers = [{"name": "chat", "ttft_ms": 400, "tbt_ms": 40}]
    outcome = plan.run(Inputs(kept(tiers=tiers), {"t": stored}, known), plan.Options(), silent)
    (row,) = outcome.document["profile_error"]
    assert row["replicas_if_slower"] is None
    assert "slower" in row["note"]
    assert row["replicas"] > 0


def test_a_profile_that_is_not_kept_here_is_named(stored: StoredTrace) -> None:
    with pytest.raises(ScenarioError, match="'mine'"):
        plan.run(Inputs(kept(), {"t": stored}), plan.Options(), silent)


def test_a_kept_profile_of_another_gpu_is_refused(stored: StoredTrace) -> None:
    other = kept(profiles=[{"model": "m", "gpu": "G", "tp": 2, "name": "mine"}])
    with pytest.raises(ScenarioError, match="mine is of m on 1 x G"):
        plan.run(
            Inputs(other, {"t": stored}, UserFacts(profiles={"mine": profile()})),
            plan.Options(),
            silent,
        )
