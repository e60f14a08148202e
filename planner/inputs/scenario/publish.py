"""Write the published JSON Schema of the scenario file.

Run it with ``python -m planner.inputs.scenario.publish``.
"""

from __future__ import annotations

import json
from pathlib import Path

from planner.inputs.scenario.schema import Scenario

SCHEMA_PATH = Path(__file__).parents[3] / "docs" / "scenario.schema.json"


def schema_text() -> str:
    schema = Scenario.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "Headroom scenario"
    return json.dumps(schema, indent=2) + "\n"


if __name__ == "__main__":
    SCHEMA_PATH.write_text(schema_text(), encoding="utf-8")
