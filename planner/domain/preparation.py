"""Prepare a scenario for a run: hardware, traffic, sizes and requests."""

from dataclasses import replace

from planner.domain.outcome import Inputs
from planner.domain.planning.inputs import PlannedWindow
from planner.domain.planning.planning import begin_forecasts, plan_window
from planner.domain.progress import Progress, part
from planner.domain.replay.cells import carried_into, cells_of
from planner.domain.replay.replay import prepare
from planner.domain.sizing.curves import unsized_sentences
from planner.domain.sizing.sizing import size_over_time
from planner.domain.study import Study
from planner.domain.traffic.forecast_requests import requests_ahead
from planner.domain.traffic.known_lengths import known_lengths, traffic_with_known_lengths
from planner.domain.traffic.traffic import traffic_and_window
from planner.inputs.scenario.build import build_hardware
from planner.inputs.scenario.settings import settings_of
from planner.inputs.scenario.topology import network_of


def with_seed(inputs: Inputs, seed: int | None) -> Inputs:
    """Return the inputs with another seed of the scenario; None: as they are."""
    if seed is None:
        return inputs
    return replace(inputs, scenario=inputs.scenario.model_copy(update={"seed": seed}))


def study_of(inputs: Inputs, progress: Progress) -> Study:
    """Return the study of a scenario's window, with its requests.

    If the window is after the traffic, requests are drawn from the forecast.
    """
    study = study_at(inputs, progress)
    traffic, window, settings = study.traffic, study.window, study.settings
    cells, notes, seed = cells_of(study), traffic.notes, settings.seed
    if window.after_traffic:
        method = settings.plan.forecast.method
        requests, drawn = requests_ahead(traffic, window, method, seed, cells=cells)
        notes += drawn
    else:
        requests = traffic.requests(window.start_s, window.end_s, seed, cells=cells)
    traffic = replace(traffic, notes=notes + unsized_sentences(study.hardware, requests))
    study = replace(study, traffic=traffic, trace=requests, cells=cells)
    network = network_of(inputs.scenario, study.hardware)
    return replace(study, network=network, carried=carried_into(study))


def study_at(inputs: Inputs, progress: Progress) -> Study:
    """Return the study of a scenario's window without requests, which planning does not need."""
    hardware = build_hardware(inputs.scenario, inputs.user_facts, spot=True)
    settings = settings_of(inputs.scenario)
    progress(0.0, "Reading the traffic")
    traffic, window = traffic_and_window(settings, inputs.traces)
    begin_forecasts(settings.plan, hardware, traffic, window)
    lengths = known_lengths(traffic, window, settings.seed)
    traffic = traffic_with_known_lengths(traffic, lengths)
    hardware = replace(hardware, tiers_in_use=traffic.tiers_in_use)
    sizes = size_over_time(hardware, lengths, settings.seed, part(progress, 0.2, 0.9))
    progress(0.9, "Preparing the requests")
    no_requests = traffic.measured.rows(slice(0))
    return prepare(settings, hardware, traffic, window, sizes, no_requests)


def planned_of(study: Study, progress: Progress) -> PlannedWindow:
    """Return the plan of a study's window that starts with today's fleet."""
    return plan_window(study.plan_input, progress)
