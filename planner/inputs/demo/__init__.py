"""The demo: a synthetic week of a synthetic fleet, drawn from published statistics. No Django."""

from pathlib import Path

DEMO_NAME = "Demo: two models, two regions"
DEMO_SCENARIO = (Path(__file__).parent / "scenario.yaml").read_text(encoding="utf-8")


def demo_scenario(trace: str) -> str:
    """Return the demo's scenario for the stored trace of that name."""
    return DEMO_SCENARIO.replace("TRACE", trace)
