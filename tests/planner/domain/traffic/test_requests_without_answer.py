"""Requests without an answer, such as embeddings: prompts alone, from the file to the replay."""

from pathlib import Path

import numpy as np
import pytest

from planner.domain.progress import silent
from planner.domain.sizing.sizing import size
from planner.domain.traffic.known_lengths import known_lengths, traffic_with_known_lengths
from planner.domain.traffic.sources import StoredTrace
from planner.domain.traffic.traffic import build_traffic
from planner.inputs.ingest import IngestOptions, ingest_file
from planner.inputs.ingest.store import read_report
from tests.planner.domain import builders as make

HORIZON = {"period_s": 600, "lead_s": 0, "duration_s": 600}


def counts(folder: Path, answers: int) -> StoredTrace:
    path = folder / f"counts{answers}.csv"
    rows = [f"2024-05-13T{h:02d}:00:00Z,{100 + h},{40_000 + h},{answers}\n" for h in range(24)]
    path.write_text("time,requests,input_tokens,output_tokens\n" + "".join(rows))
    store = folder / f"{answers}.store"
    report = ingest_file(path, store, IngestOptions(format="demand", amounts="counts"))
    return StoredTrace("t", "demand", report.clock, store)


@pytest.mark.parametrize("answers", [0, 30])
def test_counts_without_answers_draw_prompts_alone(tmp_path: Path, answers: int) -> None:
    stored = counts(tmp_path, answers)
    traffic = build_traffic(make.traffic_settings(), {"t": stored})
    start = traffic.demand.start_s
    drawn = traffic.requests(start, start + 24 * 3600.0, 1)
    assert drawn.output_tokens.tolist() == [1] * len(drawn)
    assert len(drawn) == sum(100 + h for h in range(24))
    assert traffic.demand.output_tokens.sum() == len(drawn)
    assert read_report(stored.store).unanswered == (0 if answers else len(drawn))


def test_a_log_without_answers_is_sized_by_its_prompts(tmp_path: Path) -> None:
    capacities = []
    for answers in (0, 1, 50):
        stored = make.request_file(
            tmp_path, np.arange(3600.0), isl=400, osl=answers, name=f"log{answers}"
        )
        scenario = make.scenario(horizon=HORIZON)
        hardware, traffic, window = make.parts(scenario, stored)
        traffic = traffic_with_known_lengths(traffic, known_lengths(traffic, window, scenario.seed))
        assert traffic.measured.output_tokens.min() == max(answers, 1)
        sizes = size(hardware, traffic.lengths, scenario.seed, silent)
        capacities.append(float(sizes.pool_tps[0, 0, 0]))
    assert capacities[0] == capacities[1] > capacities[2]
