"""Excerpts of published config.json files, by the catalogue's name of the model."""

import json
from pathlib import Path
from typing import Any

CONFIGS: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_suffix(".json").read_text(encoding="utf-8")
)
MLA = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}
