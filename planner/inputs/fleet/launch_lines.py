"""Read the launch line of an engine: vLLM, SGLang or TensorRT-LLM, in a shell or a container."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

from planner.errors import CatalogueError
from planner.inputs.catalogue.hardware import model_name
from planner.inputs.catalogue.names import PRECISION, stated_precision
from planner.inputs.fleet.pools import RunningPool, section, whole_number

# What starts an engine: in a command, and in the name of an image whose entry point is the engine.
STARTS = {
    "vllm": r"vllm\s+serve\b|vllm\.entrypoints\.(openai\.)?api_server\b|vllm\.entrypoints\.cli\S*"
    r"|dynamo\.vllm\b",
    "sglang": r"sglang\.launch_server\b|sglang\s+serve\b|dynamo\.sglang\b",
    "trtllm": r"trtllm-serve\b|dynamo\.trtllm\b",
}
IMAGES = {
    "vllm": re.compile(r"\bvllm\b|vllm-openai|llm-d"),
    "sglang": re.compile(r"sglang"),
    "trtllm": re.compile(r"tensorrt-?llm|trtllm"),
}
LAUNCH = re.compile("|".join(STARTS.values()))
# Images whose tag is the version of the engine; others have a version of their own.
VERSION = re.compile(r"(?:vllm-openai|vllm|sglang):v?(\d+\.\d+(?:\.\d+)*)")
SEPARATORS = re.compile(r"^[;&|]+$")
VARIABLE = re.compile(r"\$(?:\{(\w+)(?::-([^}]*))?\}|\((\w+)\)|(\w+))")
ASSIGNMENT = re.compile(r"^\s*(?:export\s+)?(\w+)=[\"']?([^\s\"';$]*)", re.MULTILINE)
HUB = re.compile(r"models--([^/]+?)--([^/]+)")
FLAG = re.compile(r"--?[A-Za-z]")

# Flags of the engines, without leading hyphens and with hyphens for underscores.
FLAGS = {
    "model": ("model", "model-path", "model-id", "hf-model"),
    "served": ("served-model-name",),
    "tp": ("tensor-parallel-size", "tp", "tp-size", "tensor-parallel"),
    "pp": ("pipeline-parallel-size", "pp", "pp-size"),
    "dp": ("data-parallel-size", "dp", "dp-size"),
    "ep": ("expert-parallel-size", "ep-size", "ep"),
    "expert": ("enable-expert-parallel", "enable-ep-moe"),
    "attention": ("enable-dp-attention",),
    "precision": ("quantization", "q"),
    "kv": ("kv-cache-dtype",),
    "batch": ("max-num-seqs", "max-running-requests", "max-batch-size"),
    "batch-tokens": ("max-num-batched-tokens", "max-prefill-tokens", "max-num-tokens"),
    "mode": ("disaggregation-mode",),
    "transfer": ("kv-transfer-config",),
}
NAME_OF_FLAG = {flag: name for name, flags in FLAGS.items() for flag in flags}
WORKER = re.compile(r"--(headless\b|node[-_]rank[= ]+[1-9])")  # a further node of a replica
ROLES = {"kv_producer": "prefill", "kv_consumer": "decode"}


def launch_pools(text: str) -> list[RunningPool]:
    """Return a pool for each launch line of a shell script. Replicas are not stated there."""
    variables = dict(ASSIGNMENT.findall(text))
    pools = []
    for command in _commands(text):
        line = " ".join(command)
        starts_engine = LAUNCH.search(line) or _runs_image(command)
        if starts_engine and not WORKER.search(line):
            pools.append(engine_facts(command, variables))
    return pools


def is_launch(text: str) -> bool:
    """Return whether a text has a launch line of an engine."""
    return bool(LAUNCH.search(text)) or any(_runs_image(c) for c in _commands(text))


def engine_of_image(image: str) -> str:
    """Return the engine that the image starts by itself, or ""."""
    return next((engine for engine, pattern in IMAGES.items() if pattern.search(image)), "")


def version_of_image(image: str) -> str:
    """Return the version in the tag of an image, or ""."""
    match = VERSION.search(image)
    return match[1] if match else ""


def _runs_image(command: Sequence[str]) -> bool:
    """Return whether a command starts a container of an engine."""
    runs = any(word in ("docker", "podman", "nerdctl") for word in command) and "run" in command
    return runs and bool(_image(command))


def _image(command: Sequence[str]) -> str:
    """Return the image of a container that a command starts, or ""."""
    for word in command:
        is_image_name = "/" in word and word[0].isalnum() and "=" not in word
        if is_image_name and engine_of_image(word):
            return word
    return ""


def _commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each command of a shell script, also of those in ``sh -c "..."``."""
    joined = re.sub(r"\\\r?\n", " ", text)
    for line in joined.splitlines():
        try:
            words = list(_words(line))
        except ValueError:  # an open quote: the rest of a text block
            words = line.split()
        command: list[str] = []
        for word in [*words, ";"]:
            if not SEPARATORS.fullmatch(word):
                command.append(word)
                continue
            # sh -c "vllm serve ..." holds the launch line in one word.
            inner = [word for word in command if " " in word and LAUNCH.search(word)]
            if inner:
                yield from _commands(inner[0])
            elif command:
                yield command
            command = []


def _words(line: str) -> Iterator[str]:
    """Yield the words of a shell line, with ; & | as their own words."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    yield from lexer


def replace_variables(word: str, variables: Mapping[str, str]) -> str:
    """Return ``word`` with its shell variables replaced; "" if a value is unknown."""

    def value(match: re.Match[str]) -> str:
        """Return the value of a matched variable, or ""."""
        braced, default, parens, plain = match.groups()
        return variables.get(braced or parens or plain) or default or ""

    known = all(map(value, VARIABLE.finditer(word)))
    return VARIABLE.sub(value, word) if known else ""


def engine_facts(
    command: Sequence[str], variables: Mapping[str, str] | None = None, engine: str = ""
) -> RunningPool:
    """Return the facts that a launch command states about its engine, as a pool.

    ``engine`` is the engine of the container image, if the command names none. ``variables`` are
    the environment variables that the command may refer to.
    """
    text = " ".join(command)
    engine = next((name for name, p in STARTS.items() if re.search(p, text)), engine)
    engine = engine or engine_of_image(_image(command))
    flags, first = _flags(command, variables or {})
    tp = whole_number(flags.get("tp", "1"))
    model = model_of_path(flags.get("model") or first, flags.get("served", ""))
    expert = "expert" in flags or (whole_number(flags, "ep") or 1) > 1
    # The precision of the flag, else that in the model's name.
    quantization = flags.get("precision", "").lower()
    precision = next((PRECISION[part] for part in PRECISION if part in quantization), None)
    return RunningPool(
        model=model,
        tp=tp,
        pp=whole_number(flags, "pp"),
        dp=whole_number(flags, "dp"),
        expert_parallel=expert or None,
        attention_dp="attention" in flags or None,
        precision=precision or stated_precision(model) or "",
        kv_precision="fp8" if "fp8" in flags.get("kv", "") else "",
        engine=engine,
        engine_version=version_of_image(_image(command)),
        role=_role(flags),
        max_batch=whole_number(flags, "batch") or None,
        max_batch_tokens=whole_number(flags, "batch-tokens") or None,
    )


def _flags(command: Sequence[str], variables: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """Return the values of a command's flags by the keys of FLAGS, and its positional argument."""
    # The engine's arguments follow "serve", or the image.
    starts = [i for i, word in enumerate(command) if word in ("serve", "trtllm-serve")]
    if image := _image(command):
        starts.append(command.index(image))
    words = list(command[max(starts, default=-1) + 1 :])
    flags: dict[str, str] = {}
    for index, word in enumerate(words):
        if not FLAG.match(word):
            continue
        # --flag=value, --flag value, or --flag alone
        flag, equals, value = word.partition("=")
        if not equals and index + 1 < len(words) and not FLAG.match(words[index + 1]):
            value = words[index + 1]
        if name := NAME_OF_FLAG.get(flag.lstrip("-").replace("_", "-")):
            flags[name] = replace_variables(value, variables)
    argument = words[0] if words and not FLAG.match(words[0]) else ""
    return flags, replace_variables(argument, variables)


def model_of_path(path: str, served: str = "") -> str:
    """Return the name of a model: its repository, or the last part of its path.

    ``served`` are the names, separated by spaces or commas, under which the engine serves it. The
    first of them is returned without a path, or if it is in the catalogue and the other is not.
    """
    hub = HUB.search(path)
    if hub:
        return f"{hub[1]}/{hub[2]}"
    path = re.sub(r"^(hf|huggingface|pvc|s3|gs|oci|modelscope)(\+hf)?://", "", path).rstrip("/")
    local = path.startswith(("/", ".", "~")) or path.count("/") > 1
    name = path.rpartition("/")[2] if local else path
    alias = served.split()[0].split(",")[0] if served.strip() else ""
    prefers_alias = is_catalogue_model(alias) and not is_catalogue_model(name)
    return alias if prefers_alias else name or alias


def is_catalogue_model(name: str) -> bool:
    """Return whether the catalogue has a model of this name."""
    try:
        return bool(name and model_name(name))
    except CatalogueError:
        return False


def _role(flags: Mapping[str, str]) -> str:
    """Return "prefill", "decode" or "" from the launch flags."""
    if flags.get("mode") in ("prefill", "decode"):
        return flags["mode"]
    try:
        transfer = json.loads(flags.get("transfer") or "{}")
    except ValueError:
        return ""
    return ROLES.get(str(section(transfer).get("kv_role")), "")
