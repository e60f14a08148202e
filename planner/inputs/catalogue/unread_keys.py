"""Find the keys of a ``config.json`` that matter to a model's shape and that nothing has read.

A key matters if its name is about experts, state space, kinds of attention, encoders or
quantisation. It does not matter if its value switches something off, or if its name is among
``without_effect`` of ``config_keys.toml``.
"""

import re
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

REMEDY = (
    "Describe the model by its shape in YAML (models: with shape:), or remove the key if the "
    "model's weights, caches and layers do not depend on it"
)
MOST_NAMED = 4
DECLARED = tomllib.loads((Path(__file__).parent / "config_keys.toml").read_text(encoding="utf-8"))
UNREAD, ASSUMED = DECLARED["unread"], DECLARED["assumed"]
STATE_SPACE = "|".join(UNREAD["state_space"])
TOPICS = re.compile("|".join((STATE_SPACE, *UNREAD["topics"])))
WITHOUT_EFFECT = re.compile("|".join(UNREAD["without_effect"]))
# Keys of a decoder whose attention has no mask.
BOTH_WAYS = ("is_causal", "causal", "use_bidirectional_attention")
ENCODERS = re.compile("|".join(UNREAD["encoders"]))


def unread_keys(config: Mapping[str, Any], used: Collection[str]) -> list[str]:
    """Return the config keys that affect serving and are not in ``used``, at most MOST_NAMED."""
    return [key for key in _unread(config) if key.split(".")[0] not in used][:MOST_NAMED]


def state_space_keys(config: Mapping[str, Any], heads: Collection[str]) -> list[str]:
    """Return the keys about state-space layers if the config has no attention heads.

    At most ``MOST_NAMED`` are returned. ``heads`` are the known names of the number of heads.
    """
    if re.fullmatch(UNREAD["without_attention"], str(config.get("model_type"))):
        return [f"model_type {config['model_type']!r:.60}"]
    if any(name in config for name in heads):
        return []
    return [key for key in config if re.search(STATE_SPACE, key)][:MOST_NAMED]


def encoder_mark(config: Mapping[str, Any]) -> str:
    """Return the config key that marks a model as an encoder, or ""."""
    is_mark: Mapping[str, Callable[[Any], object]] = {  # checks of a key's value
        "model_type": lambda value: ENCODERS.fullmatch(str(value)),
        "type_vocab_size": lambda value: value is not None,
        "architectures": lambda value: any(
            str(name).endswith(("ForMaskedLM", "BertModel", "RobertaModel")) for name in value or ()
        ),
        "is_causal": lambda value: value is False,
        "causal": lambda value: value is False,
        "use_bidirectional_attention": lambda value: value in (True, "all"),
    }
    marks = (key for key, check in is_mark.items() if key in config and check(config[key]))
    return next(marks, "")


def _unread(config: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield the keys that affect serving; keys of nested objects come with their path."""
    for key, value in config.items():
        name = str(key)
        if _is_off(value) or (WITHOUT_EFFECT.fullmatch(name) and name not in ASSUMED):
            continue
        parts = value if isinstance(value, list) else [value]
        if name in ASSUMED and all(part in ASSUMED[name] for part in parts):
            continue
        if TOPICS.search(name.lower()):
            yield path + name
        elif isinstance(value, Mapping) and not re.search(r"rope|map$|id2label|label2id", name):
            yield from _unread(value, f"{path}{name}.")


def _is_off(value: Any) -> bool:
    """Return whether ``value`` disables the feature of its key."""
    if isinstance(value, list | tuple):
        return all(_is_off(part) for part in value)
    return not value
