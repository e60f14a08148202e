"""The run that lets models share GPUs: what its result states, and how its options change it."""

from functools import cache

import pytest

from planner.domain.kinds.share import Options, ShareResult, run
from planner.domain.outcome import Inputs
from planner.domain.progress import silent
from planner.domain.reports.registry import REPORTS
from planner.domain.sharing.pools import host_of
from planner.errors import ScenarioError
from planner.inputs import catalogue
from planner.inputs.scenario.document import edit, parse
from tests.planner.toy import FLEET

MODELS = "abcd"
LAUNCH = {"day": "flat", "variation": 0, "begins": "2026-03-02T00:00:00Z"}


def document(names=MODELS, **changes):
    """The scenario of ``document_text``."""
    return parse(document_text(names, **changes))


def document_text(names=MODELS, **changes):
    """Models of 16 GB on GPUs of 80 GB, with a request every 100 s each, except the first."""
    models = [
        {"name": name, "weight_gb": 16, "kv_bytes_per_token": 131072, "max_context": 131072}
        for name in names
    ]
    profiles = [
        {"model": name, "gpu": "G", "alpha_ms": 12, "beta_ms": 0.15, "gamma_ms": 12,
         "delta_ms": 0.06}
        for name in names
    ]  # fmt: skip
    sources = [
        {"model": name, "launch": {"rps": 0.2 if name == "a" else 0.01, **LAUNCH},
         "input_tokens": {"mean": 500}, "output_tokens": {"mean": 80}}
        for name in names
    ]  # fmt: skip
    values = {"models": models, "profiles": profiles, "traffic.sources": sources, **changes}
    return edit(f"version: 1\n{FLEET}traffic: {{sources: []}}\n", values)


@cache
def result(**options) -> ShareResult:
    return run(Inputs(document()), Options(**options), silent).result


@pytest.mark.parametrize("by", ["best", "memory", "time"])
def test_every_request_and_model_is_accounted_for(by):
    shared = result(by=by)
    ledger = shared.requests
    assert ledger.arrived == ledger.completed + ledger.rejected + ledger.unfinished
    assert ledger.arrived == shared.replayed.requests == sum(row.requests for row in shared.models)
    assert sorted(row.model for row in shared.models) == list(MODELS)
    assert sorted(name for row in shared.gpus for name in row.models) == list(MODELS)
    assert all(row.shared.met and row.shared.attainment >= 0.95 for row in shared.models)
    assert shared.shared.gpus == sum(row.gpus for row in shared.gpus)
    assert shared.shared.usd_per_day == pytest.approx(24 * 2 * shared.shared.gpus)
    assert shared.dedicated.gpus == 4
    assert shared.saving == pytest.approx(1 - shared.shared.gpus / 4) and shared.saving > 0
    assert all(0.9 <= row.unseen_attainment <= 1 for row in shared.models)
    assert all(bool(row.why_alone) != bool(row.shared_with) for row in shared.models)


def test_by_memory_nothing_is_loaded_and_by_time_something_is():
    assert {row.way for row in result(by="memory").gpus} <= {"memory", "alone"}
    assert sum(row.loads for row in result(by="memory").models) == 0
    assert "time" in {row.way for row in result(by="time").gpus}
    assert sum(row.loads for row in result(by="time").models) >= 4


def test_the_exact_packing_needs_no_more_gpus():
    assert result(method="exact").shared.gpus <= result().shared.gpus


def test_a_model_alone_needs_what_it_needs_anyway():
    alone = run(Inputs(document("a")), Options(), silent).result
    assert alone.shared == alone.dedicated
    assert alone.models[0].shared == alone.models[0].alone
    assert [row.way for row in alone.gpus] == ["alone"]


def test_the_scenario_says_whether_loads_overlap_computing():
    for overlap in (False, True):
        sharing = document(**{"fleet.sharing": {"overlap": overlap}}).fleet.sharing
        assert host_of(sharing, catalogue.gpu("H100-SXM"), 1, []).overlap is overlap


def test_slow_loads_keep_models_apart_by_time():
    slow = document(**{"fleet.sharing": {"host_gb_s": 1, "host_memory_gb": 0, "disk_gb_s": 0.1}})
    assert run(Inputs(slow), Options(by="time"), silent).result.saving == 0


def test_its_report_shows_every_gpu_and_model():
    outcome = run(Inputs(document()), Options(), silent)
    report = REPORTS["share"].of(outcome.document, lambda _: None)
    tables = [table for section in report.sections for table in section.tables]
    assert [len(table.rows) for table in tables[:2]] == [len(outcome.result.gpus), len(MODELS)]
    assert outcome.tables["models"].height == len(MODELS)


def test_a_model_with_prefill_and_decode_pools_shares_as_one_replica():
    changed = parse(document_text()).profiles
    profiles = [row.model_dump(exclude_defaults=True) for row in changed if row.model != "d"]
    speed = {key: value for key, value in profiles[0].items() if key != "model"}
    profiles += [{"model": "d", "role": role, **speed} for role in ("prefill", "decode")]
    serving = [{"kv_transfer": {"gb_s": 25}}]
    split = run(Inputs(document(profiles=profiles, serving=serving)), Options(), silent).result
    # The decode profile has the speed of the others, so the packing is the same.
    assert (split.shared, split.gpus) == (result().shared, result().gpus)
    assert len(split.warnings) == len(result().warnings) + 1
    assert split.notes == result().notes


def test_without_owned_gpus_there_is_an_error():
    with pytest.raises(ScenarioError, match="regions"):
        run(Inputs(document(**{"regions.0.capacity": {"G": 0}})), Options(), silent)
