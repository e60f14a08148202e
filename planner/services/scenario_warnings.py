"""Find obstacles to a run of a scenario when it is saved, before somebody waits for the run.

A draft may be saved with problems: its trace may not be ready, or its price not known yet.
"""

from planner.domain.traffic.traffic import build_traffic
from planner.domain.traffic.window import resolve_window
from planner.errors import EXPECTED
from planner.inputs.scenario.build import build_hardware
from planner.inputs.scenario.document import parse
from planner.inputs.scenario.settings import settings_of
from planner.models import Trace
from planner.selectors.run_hardware import hardware_of
from planner.services.execution import stored_traces
from planner.services.scenario_hardware import resolve_scenario

MAX_COUNTED_REQUESTS = 2_000_000  # requests that can be counted into bins within a second


def scenario_warnings(document: str) -> list[str]:
    """Return one sentence for each problem that a run of a valid document would have.

    It checks names, prices, traces, window and periods. Traffic and window are not checked if the
    traces have over MAX_COUNTED_REQUESTS requests in all.
    """
    scenario = parse(document)
    warnings = []
    try:
        build_hardware(scenario, hardware_of(resolve_scenario(scenario)))
    except EXPECTED as problem:
        warnings += str(problem).splitlines()
    try:
        traces = stored_traces(scenario)
        named = Trace.objects.filter(name__in=traces)
        counted = sum(t.requests or 0 for t in named if t.kind == Trace.Kind.REQUESTS)
        if counted <= MAX_COUNTED_REQUESTS:
            settings = settings_of(scenario)
            traffic = build_traffic(settings.traffic, traces)
            resolve_window(settings.window, traffic.demand, traffic.clock)
    except EXPECTED as problem:
        warnings += str(problem).splitlines()
    return warnings
