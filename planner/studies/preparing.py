"""What most kinds of run begin with: a scenario made ready, and what every result says of it."""

from __future__ import annotations

from dataclasses import replace

from planner.scenario.build import build_hardware
from planner.scenario.known import Known
from planner.scenario.schema import Scenario
from planner.studies.outcome import Traces
from planner.studies.planning.figures import plan_more
from planner.studies.planning.planning import Planned, plan_window
from planner.studies.progress import Progress, part
from planner.studies.replay.replay import prepare
from planner.studies.results import documents as doc
from planner.studies.sizing.sizing import size
from planner.studies.traffic.ahead import requests_ahead
from planner.studies.traffic.traffic import Traffic, build_traffic
from planner.studies.traffic.window import Window, resolve_window
from planner.studies.values import Study


def seeded(scenario: Scenario, seed: int | None) -> Scenario:
    return scenario if seed is None else scenario.model_copy(update={"seed": seed})


def study_of(scenario: Scenario, traces: Traces, known: Known, progress: Progress) -> Study:
    """Hardware, traffic, sizes and requests of a scenario's window."""
    hardware = build_hardware(scenario, known, spot=True)
    progress(0.0, "Reading the traffic")
    traffic = build_traffic(scenario, traces)
    window = resolve_window(scenario, traffic.demand, traffic.clock)
    sizes = size(hardware, traffic, scenario.seed, part(progress, 0.2, 0.9))
    progress(0.9, "Preparing the requests")
    if window.ahead:
        requests, notes = requests_ahead(scenario, traffic, window)
        traffic = replace(traffic, notes=traffic.notes + notes)
    else:
        requests = traffic.requests(window.start_s, window.end_s, scenario.seed)
    return prepare(scenario, hardware, traffic, window, sizes, requests)


def planned_of(study: Study, progress: Progress) -> Planned:
    return plan_window(
        study.scenario,
        study.hardware,
        study.traffic,
        study.window,
        study.sizes,
        current=study.today,
        progress=progress,
    )


def plan_figures(study: Study, planned: Planned) -> doc.Document:
    more = plan_more(planned.plan, study.hardware, study.scenario, study.sizes)
    return doc.plan_document(planned.plan, study.hardware) | more


def frame(study: Study) -> doc.Document:
    """What every result says about what it rests on."""
    return {
        "scenario": study.scenario.name,
        "window": doc.window_document(study.window, study.traffic),
        "capacity": doc.capacity_document(study.sizes, study.hardware),
        "provenance": doc.provenance_document(study),
        "notes": [
            *gaps_noted(study.traffic, study.window),
            *([study.misfit] if study.misfit else []),
            "Planned policies begin the window with their first fleet up, as if the plan had been "
            "followed before; reactive scaling begins with today's fleet.",
            *study.traffic.notes,
            *study.sizes.notes,
        ],
        "requests": len(study.trace),
    }


def gaps_noted(traffic: Traffic, window: Window) -> list[str]:
    gaps = traffic.demand.gaps(window.start_s, window.end_s)
    if not gaps:
        return []
    return [
        f"{gaps} of the {round(window.duration_s / window.bin_s)} bins of the window were not "
        "observed in full: what came then is neither replayed nor in any figure."
    ]
