"""A scenario's roofline with kept rows: those of decodes alone leave prefill as modelled."""

import pytest

from planner.inputs import catalogue
from planner.inputs.catalogue.estimate_calibration import estimate_fit
from planner.inputs.estimates.measured_corrections import corrections_from, measurements
from planner.inputs.scenario.schema import Profile
from planner.inputs.scenario.speeds import speed_of
from planner.inputs.scenario.user_facts import NO_USER_FACTS, UserFacts
from simulation.performance.profile import Profile as Speed
from simulation.performance.profile import iteration_s

MODEL, GPU = "llama-3.1-8b", "A100-80GB"
ROWS = [
    {"model": MODEL, "gpu": GPU, "tp": 1, "engine": "vllm", "isl": 1000, "osl": 200,
     "concurrency": users, "tbt_ms": 20 + 0.8 * users}
    for users in (1, 2, 4, 8, 16, 32, 64, 128)
]  # fmt: skip


def speed(known: UserFacts = NO_USER_FACTS, **section: object) -> Speed:
    profile = Profile.model_validate(
        {"model": MODEL, "gpu": GPU, "kind": "roofline", "engine": "vllm"} | section
    )
    return speed_of(profile, catalogue.model(MODEL), catalogue.gpu(GPU), known)


def test_rows_of_decodes_alone_leave_prefill_and_its_error() -> None:
    found = corrections_from(*measurements(ROWS, "mine.csv"), estimate_fit())
    assert found is not None
    before, after = speed(), speed(UserFacts(own=found.times))
    prompt = (0.0, 0.0, 2048.0, 2048.0 * 1024)
    assert float(iteration_s(after, 64, 64000, 0, 0)) > 1.2 * float(
        iteration_s(before, 64, 64000, 0, 0)
    )
    assert float(iteration_s(after, *prompt)) == pytest.approx(
        float(iteration_s(before, *prompt)), rel=1e-6
    )
    assert after.provenance.kind == "modelled" and after.spread >= before.spread


@pytest.mark.parametrize(("version", "later"), [("0.99", True), ("0.19.0", False), ("", False)])
def test_a_version_later_than_any_measured_one_is_part_of_the_source(
    version: str, later: bool
) -> None:
    source = speed(engine_version=version).provenance.source
    assert (str(estimate_fit().published) in source) == later
