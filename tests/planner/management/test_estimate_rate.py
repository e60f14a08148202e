"""An estimate at a rate is what sizes read: the same profile, the same simulator."""

from typing import Any

import numpy as np
import pytest

from planner.errors import PlannerError
from planner.inputs import catalogue
from planner.services.estimates import MeasurementSource
from simulation.fleet import Tier
from simulation.sizing.capacity import SizingCase, capacity
from tests.planner.estimates import estimate_many, estimate_one
from tests.planner.management.test_estimate import answered, refused

pytestmark = pytest.mark.django_db

OWN = MeasurementSource(use_stored=False)
ROW: dict[str, Any] = {"model": "llama-3.1-8b", "gpu": "H100-SXM", "isl": 1024, "osl": 64}


def test_at_the_rate_of_a_size_it_says_what_the_size_says() -> None:
    profile = catalogue.profiles()["llama-3.1-8b", "H100-SXM", 1]
    lengths = (np.array([1024]), np.array([64]))
    sized = capacity(
        SizingCase(profile, lengths, Tier("chat", ttft_s=0.4, tbt_s=0.03)), requests=8000
    )
    result = estimate_one(ROW | {"rate": sized.max_rps}, OWN)
    assert result["profile"] == profile.kind
    assert result["provenance"]["source"] == profile.provenance.source
    assert result["tokens_per_s"] == pytest.approx(64 * sized.max_rps)
    at_rate = result["at_rate"]
    assert (
        at_rate["rate_rps"] < at_rate["most_rps"] and result["concurrency"] == at_rate["in_flight"]
    )
    ttft, tbt = result["ttft_ms"] / 1e3, result["tbt_ms"] / 1e3
    assert ttft < sized.ttft_s and tbt < sized.tbt_s  # means below the tier's percentiles
    assert at_rate["in_flight"] == pytest.approx(sized.max_rps * (ttft + 63 * tbt), rel=0.02)


def test_another_engine_than_a_built_in_profiles_is_computed_and_both_are_named() -> None:
    result = estimate_one(ROW | {"rate": 4, "engine": "vllm"}, OWN)
    assert result["profile"] == "roofline" and "vLLM" in result["provenance"]["source"]
    (sentence,) = [note for note in result["assumptions"] if "built-in profile" in note]
    assert "TensorRT-LLM" in sentence
    # A lone request: the closed loop and the replay agree, start and all.
    calm = estimate_one(ROW | {"rate": 0.05, "engine": "sglang"}, OWN)
    assert calm["ttft_ms"] == pytest.approx(calm["at_rate"]["closed_loop_ttft_ms"], rel=0.05)
    assert calm["tbt_ms"] == pytest.approx(calm["at_rate"]["closed_loop_tbt_ms"], rel=0.05)


def test_rates_that_cannot_be_are_refused_in_a_sentence() -> None:
    for more, words in (
        ({"rate": 1000}, "sustains at most"),
        ({"rate": -1}, "Give requests/s above 0"),
        ({"rate": 1, "draft_tokens": 3, "accepted_tokens": 2}, "speculative decoding"),
        ({"rate": 1, "mode": "disagg"}, "prefill and decode apart"),
    ):
        with pytest.raises(PlannerError, match=words):
            estimate_one(ROW | more, OWN)
    both = estimate_many([ROW | {"rate": 1000, "concurrency": 4}], OWN)[0]
    assert "at_rate" not in both  # a file's rate beside its concurrency is not asked for
    words = [part for key, value in ROW.items() for part in (f"--{key}", str(value))]
    assert "exclude each other" in refused(*words, "--rate", 2, "--concurrency", 2)
    assert answered(*words, "--rate", 2, "--without-kept")["at_rate"]["rate_rps"] == 2


def test_more_gpus_that_give_less_are_told() -> None:
    """Collectives over PCIe take more than the GPUs bring: said, with what half of them give."""
    row = {"model": "llama-3.1-8b", "gpu": "L40S", "isl": 1155, "osl": 211, "concurrency": 256}
    first, two = (estimate_one(row | {"tp": tp}, OWN) for tp in (1, 2))
    notes = [note for note in two["assumptions"] if "smaller replicas" in note]
    assert bool(notes) == (two["tokens_per_s"] <= first["tokens_per_s"])
    assert not notes or f"{first['tokens_per_s']:,.0f}" in notes[0]
    fast = estimate_one(row | {"gpu": "H100-SXM", "tp": 2}, OWN)
    assert not any("smaller replicas" in note for note in fast["assumptions"])
