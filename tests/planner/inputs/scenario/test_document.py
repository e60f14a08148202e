"""Scenario text: types and back without loss, faults with their line, edits that keep comments."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import ScenarioError
from planner.inputs.scenario.document import dump, edit, outline, parse, with_traces
from planner.inputs.scenario.schema import Scenario

TEXT = """\
# Kept for the meeting.
version: 1
name: "Two regions"  # quoted
models: [llama-3.1-8b]
profiles:
  - {model: llama-3.1-8b, gpu: A100-80GB, tp: 1}
regions:
  - name: east  # the larger one
    capacity: {A100-80GB: 64}
    carbon_g_per_kwh: 400
    usd_per_gpu_hour: {A100-80GB: 2}
  - name: west
    like: us-west-2
    capacity: {A100-80GB: 32}
    latency_ms: {east: 30}
tiers:
  - {name: chat, ttft_ms: 1000}
traffic:
  sources:
    - file: traces/week.csv.gz
      model: llama-3.1-8b
      regions: {east: 0.75, west: 0.25}
      tiers: {chat: 1}
horizon:
  period_s: 3600  # an hour
"""


def faults(text: str) -> list[str]:
    with pytest.raises(ScenarioError) as problem:
        parse(text, "plan.yml")
    return str(problem.value).split("\n")


def fault(old: str, new: str) -> str:
    assert TEXT.count(old) == 1
    lines = faults(TEXT.replace(old, new))
    assert len(lines) == 1, lines
    return lines[0]


# There and back

names = st.from_regex(r"[a-z][a-z0-9.+/-]{0,11}", fullmatch=True)
amounts = st.floats(0.001, 1e6)
printable = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), max_size=40)


def some(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    models, gpus, regions, tiers = (
        draw(st.lists(names, min_size=1, max_size=3, unique=True)) for _ in range(4)
    )
    full = draw(st.booleans())
    speed = {key: draw(amounts) for key in ("alpha_ms", "beta_ms", "gamma_ms", "delta_ms")}
    sources = [
        {
            draw(st.sampled_from(["trace", "file"])): draw(names),
            "model": draw(st.sampled_from(models)),
            "regions": {draw(st.sampled_from(regions)): 1.0},
            "tiers": {draw(st.sampled_from(tiers)): 1.0},
            "scale": draw(amounts),
            "input_tokens": draw(some(st.builds(dict, mean=amounts, cv=st.floats(0, 100)))),
        }
        for _ in range(draw(st.integers(1, 3)))
    ]
    data = {
        "version": 1,
        "name": draw(printable.filter(lambda s: bool(s) and not s.isdigit())),
        "description": draw(printable),
        "seed": draw(st.integers(0, 2**31 - 1)),
        "models": models,
        "gpus": [
            {"name": g, "memory_gb": 80, "idle_w": 1, "prefill_w": 2, "decode_w": 3} for g in gpus
        ]
        if full
        else [],
        "profiles": [
            {
                "model": m,
                "gpu": draw(st.sampled_from(gpus)),
                "tp": draw(st.integers(1, 8)),
                "max_batch": draw(some(st.integers(1, 512))),
                **(speed if full else {}),
            }
            for m in models
        ],
        "regions": [
            {
                "name": r,
                "capacity": {g: draw(st.integers(0, 99)) for g in gpus},
                "carbon_g_per_kwh": draw(some(st.floats(0, 1e5))),
                "pue": draw(some(st.floats(1, 2))),
            }
            for r in regions
        ],
        "tiers": [
            {
                "name": t,
                "ttft_ms": draw(amounts),
                "percentile": draw(st.floats(1, 99)),
                "deferrable": i > 0 and draw(st.booleans()),
            }
            for i, t in enumerate(tiers)
        ],
        "traffic": {"sources": sources, "bin_s": draw(some(amounts))},
        "fleet": {
            "startup_s": draw(amounts),
            "today": [
                {
                    "model": models[0],
                    "region": regions[0],
                    "gpu": gpus[0] if full else None,
                    "replicas": draw(st.integers(0, 9)),
                    "minimum": draw(some(st.just(0))),
                }
            ]
            if full
            else [],
        },
        "policies": draw(
            st.lists(st.sampled_from(["flat-peak", "flat-min", "lt-i"]), min_size=1, unique=True)
        ),
        "horizon": {
            "start": draw(
                some(
                    st.just("end")
                    | st.datetimes(datetime(2000, 1, 1), datetime(2099, 1, 1)).map(
                        lambda moment: moment.replace(tzinfo=UTC)
                    )
                )
            ),
            "period_s": draw(some(amounts)),
        },
    }
    if full:
        used = {profile["gpu"] for profile in data["profiles"]}  # type: ignore[index,attr-defined]
        for row in data["fleet"]["today"]:  # type: ignore[index]
            row["gpu"] = sorted(used)[0]
    return Scenario.model_validate(data)


@given(written=scenarios())
def test_text_of_any_scenario_parses_to_the_same_scenario(written: Scenario) -> None:
    again = parse(dump(written))
    assert again == written
    assert dump(again) == dump(written)


def test_copies_keep_what_was_left_out_left_out() -> None:
    """What a built-in profile brings must survive a dump of every default."""
    parsed = parse(TEXT)
    again = Scenario.model_validate(parsed.model_dump())
    assert again == parsed
    assert again.profiles[0].max_batch is None
    today = {
        "today": [{"model": "llama-3.1-8b", "region": "east", "gpu": "A100-80GB", "replicas": 2}]
    }
    text = edit(TEXT, {"fleet": today})
    assert Scenario.model_validate(parse(text).model_dump()).fleet.today[0].minimum is None


# Faults


TIERS = "{name: chat, ttft_ms: 1000}"
TWICE = "model: llama-3.1-8b, gpu: A100-80GB, tp: 1"


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        # values far above any real one
        ("version: 1\n", "version: 1\nseed: 99999999999\n", "3: seed"),
        ("{A100-80GB: 64}", "{A100-80GB: 1000000000}", "9: regions[0].capacity.A100-80GB"),
        ("tp: 1}", "tp: 1, max_batch: 1000000000}", "6: profiles[0].max_batch"),
        ("ttft_ms: 1000}", "ttft_ms: 1.0e+300}", "17: tiers[0].ttft_ms"),
        ("tiers: {chat: 1}", "scale: 1.0e+9", "23: traffic.sources[0].scale"),
        ("horizon:", "forecast: {quantile: 0.99}\nhorizon:", "24: forecast.quantile"),
        ("period_s: 3600", "duration_s: 1.0e+9", "25: horizon.duration_s"),
        ("period_s: 3600", "lead_s: 1.0e+300", "25: horizon.lead_s"),
        ("{east: 30}", "{east: 1.0e+300}", "15: regions[1].latency_ms.east"),
        (f"tiers:\n  - {TIERS}", "tiers:" + "".join(
            f"\n  - {{name: t{i}, ttft_ms: 1000}}" for i in range(101)), "16: tiers"),
        # wrong values
        ("version: 1", "version: 2", "2: version"),
        ("horizon:", "horizon:\n  start: yesterday", "25: horizon.start"),
        ("period_s: 3600", "start: soon", "25: horizon.start"),
        ("  period_s: 3600", "  perod_s: 3600", "25: horizon.perod_s"),
        ("ttft_ms: 1000", "ttft_ms: -3", "17: tiers[0].ttft_ms"),
        ("ttft_ms: 1000", "ttft_ms: .inf", "17: tiers[0].ttft_ms"),
        (TIERS, "{name: chat}", "17: tiers[0]"),
        ("    capacity: {A100-80GB: 32}\n", "", "12: regions[1].capacity"),
        ("name: east  #", "name: _east  #", "8: regions[0].name"),
        ("name: west", "name: 'west!'", "12: regions[1].name"),
        ('name: "Two regions"', "name: '12'", "3: name"),
        ("west: 0.25", "west: 0.5", "20: traffic.sources[0]"),
        ("file: traces", "trace: x\n      file: traces", "20: traffic.sources[0]"),
        ("tp: 1}", "tp: 1, alpha_ms: 3}", "6: profiles[0]"),
        ("tp: 1}", "tp: 1, alpha_ms: 0, beta_ms: 0, gamma_ms: 1, delta_ms: 0}", "6: profiles[0]"),
        ("A100-80GB: 64", '"b!": 64', "9: regions[0].capacity.b!"),
        # names that point nowhere, or stand twice
        ("      model: llama-3.1-8b", "      model: gpt", "21: traffic.sources[0].model"),
        ("west: 0.25", "mars: 0.25", "22: traffic.sources[0].regions.mars"),
        ("tiers: {chat: 1}", "tiers: {fast: 1}", "23: traffic.sources[0].tiers.fast"),
        ("{east: 30}", "{mars: 30}", "15: regions[1].latency_ms.mars"),
        ("{A100-80GB: 64}", "{H100: 64}", "9: regions[0].capacity"),
        ("latency_ms:", "topology: {s2: 1, gpus_per_node: {H9: 8}}\n    latency_ms:",
         "15: regions[1].topology.gpus_per_node.H9"),
        ("chat, ttft_ms: 1000", "chat, ttft_ms: 1000, deferrable: true", "16: tiers"),
        (TIERS, f"{TIERS}\n  - {{name: chat, e2e_ms: 9}}", "18: tiers[1]"),
        ("tp: 1}", f"tp: 1}}\n  - {{{TWICE}, max_batch: 2}}", "7: profiles[1]"),
        ("an hour\n", "an hour\npolicies: [lt-i, lt-i]\n", "26: policies[1]"),
        ("tp: 1}", "tp: 1, role: prefill}", "6: profiles[0].role"),
    ],
)  # fmt: skip
def test_a_fault_is_told_once_with_its_line_and_field(old: str, new: str, where: str) -> None:
    assert fault(old, new).startswith(f"plan.yml, line {where}: ")


@pytest.mark.parametrize(
    ("old", "new"), [("- {model: llama-3.1-8b,", "- {model: llama,"), ("name: west", "name: east")]
)
def test_a_name_that_several_places_need_is_told_at_each(old: str, new: str) -> None:
    lines = faults(TEXT.replace(old, new, 1))
    assert len(lines) > 1 and all(line.startswith("plan.yml, line ") for line in lines)


@pytest.mark.parametrize(
    ("old", "new", "known"),
    [
        ("  period_s: 3600", "  perod_s: 3600", "period_s"),
        ("      model: llama-3.1-8b", "      model: gpt", "llama-3.1-8b"),
        ("west: 0.25", "mars: 0.25", "west"),
        ("ttft_ms: 1000", "ttft_ms: 1.0e+300", "2678400000"),
        ("tp: 1}", "tp: 1, alpha_ms: 3}", "beta_ms, gamma_ms, delta_ms"),
        ("horizon:", "horizon:\n  start: yesterday", "yesterday"),
    ],
)
def test_a_fault_names_what_would_do(old: str, new: str, known: str) -> None:
    assert known in fault(old, new)


def test_today_is_held_to_the_rest_of_the_scenario() -> None:
    row = "{model: llama-3.1-8b, region: east, gpu: A100-80GB, replicas: 4"
    row_start = "fleet:\n  today:\n    - "
    assert "policies: policy 'today' needs fleet.today" in faults(TEXT + "policies: [today]\n")[0]
    below = faults(TEXT + row_start + row + ", minimum: 3, maximum: 2}\n")
    assert any("the maximum is below the minimum" in line for line in below)
    assert (
        "line 28: fleet.today[0].maximum" in faults(TEXT + row_start + row + ", maximum: 2}\n")[0]
    )
    other = row.replace("A100-80GB", "H100-SXM")
    assert (
        "fleet.today[0].gpu: GPU 'H100-SXM' is not in"
        in faults(TEXT + row_start + other + "}\n")[0]
    )


def test_every_fault_is_told_at_once_but_not_a_thousand() -> None:
    lines = faults(TEXT.replace("version: 1", "version: 2").replace("1000", "-1"))
    assert len(lines) == 2
    many = faults(TEXT + "".join(f"key{i}: 1\n" for i in range(1000)))
    assert len(many) == 21 and many[-1] == "plan.yml: and 980 more."


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "line 1: a scenario is a mapping"),
        ("- a\n", "line 1: a scenario is a mapping"),
        ("just words", "line 1: a scenario is a mapping"),
        ("version: 1\nversion: 1\n", "line 2: not valid YAML: found duplicate key"),
        ("version: 1\n\tmodels: [a]\n", "line 2: not valid YAML: found character"),
        ("version: 1\nmodels: [a\n", "not valid YAML"),
        ("version: 1\n---\nversion: 1\n", "line 2: not valid YAML"),
        ("version: 1\x00\n", "not valid YAML"),
        ("version: 1\nhorizon: {start: 2024-13-40}\n", "not valid YAML"),
        ("x" * 250_001, "longer than 250,000 characters"),
    ],
)
def test_text_that_is_no_scenario_is_refused_in_a_sentence(text: str, expected: str) -> None:
    (only,) = [line for line in faults(text) if line.startswith("plan.yml")]
    assert expected in only


# YAML that means more than it says


def test_aliases_save_typing() -> None:
    text = TEXT.replace(
        "{name: chat, ttft_ms: 1000}", "&t {name: chat, ttft_ms: 1000}\n  - {<<: *t, name: slow}"
    )
    tiers = parse(text).tiers
    assert [(tier.name, tier.ttft_ms) for tier in tiers] == [("chat", 1000), ("slow", 1000)]


def test_aliases_that_multiply_or_contain_themselves_are_refused() -> None:
    bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(12)
    )
    for text in (bomb, "&a {version: 1, models: *a}\n", "[" * 500 + "]" * 500):
        (only,) = faults(text)
        assert "aliases" in only or "deeper" in only or "a scenario is a mapping" in only


@pytest.mark.parametrize(
    "tag", ["!!python/object/apply:os.system", "!!python/name:os.system", "!secret"]
)
def test_tags_make_nothing(tag: str) -> None:
    assert "line 8: regions[0].name" in fault("name: east  #", f'name: {tag} "ls"  #')
    assert parse(TEXT.replace("horizon:\n", f"horizon: {tag}\n")).horizon.period_s == 3600


# Edits


def test_an_edit_changes_its_value_and_nothing_else() -> None:
    changed = edit(TEXT, {"horizon.period_s": 900})
    lines = zip(changed.splitlines(), TEXT.splitlines(), strict=True)
    differing = [(new.split("#"), old.split("#")) for new, old in lines if new != old]
    assert [
        ([part.strip() for part in new], [part.strip() for part in old]) for new, old in differing
    ] == [(["period_s: 900", "an hour"], ["period_s: 3600", "an hour"])]
    assert edit(TEXT, {}) == edit(TEXT, {"horizon.period_s": 3600}) == TEXT


def test_an_edit_adds_sections_and_removes_keys() -> None:
    changed = edit(TEXT, {"objective.gap": 0.01, "horizon.period_s": None, "policies": ["lt-i"]})
    parsed = parse(changed)
    assert parsed.objective.gap == 0.01 and parsed.horizon.period_s is None
    assert [policy.name for policy in parsed.policies] == ["lt-i"]
    assert "# the larger one" in changed and "# Kept for the meeting." in changed
    assert outline(changed)["policies"] == ["lt-i"]


@given(st.lists(st.sampled_from(["kept", "changed", "removed"]), min_size=1, max_size=6))
def test_rows_keep_their_comments_when_others_are_changed_or_removed(fates: list[str]) -> None:
    text = "rows:\n" + "".join(
        f"  # above {i}\n  - name: row{i}  # beside {i}\n    size: {i}\n" for i in range(len(fates))
    )
    rows = [
        row | {"size": 99} if fate == "changed" else row
        for row, fate in zip(outline(text)["rows"], fates, strict=True)
        if fate != "removed"
    ]
    changed = edit(text, {"rows": rows})
    assert outline(changed)["rows"] == rows
    for i, fate in enumerate(fates):
        if fate == "kept":
            assert f"  # above {i}\n  - name: row{i}  # beside {i}\n" in changed


def test_traces_take_the_place_of_files() -> None:
    text = TEXT.replace("an hour\n", "an hour\ndescription: x\n")
    changed = with_traces(text, {0: "week.csv.gz"})
    assert changed == text.replace("file: traces/week.csv.gz", "trace: week.csv.gz")
    assert parse(changed).traffic.sources[0].trace == "week.csv.gz"
    assert with_traces(text, {}) == text


def test_traces_take_the_place_of_files_in_one_line_and_among_others() -> None:
    source = "{file: a.csv, timezone: Asia/Seoul, regions: {east: 1}, tiers: {chat: 1}}"
    text = TEXT.replace("      tiers: {chat: 1}\n", f"      tiers: {{chat: 1}}\n    - {source}\n")
    assert parse(text).traffic.sources[1].timezone == "Asia/Seoul"
    sources = parse(with_traces(text, {1: "a"})).traffic.sources
    assert (sources[0].file, sources[0].trace) == ("traces/week.csv.gz", None)
    assert (sources[1].file, sources[1].timezone, sources[1].trace) == (None, None, "a")


def test_variants_of_a_profile_are_told_apart() -> None:
    both = "tp: 1, role: prefill}\n  - {model: llama-3.1-8b, gpu: A100-80GB, tp: 1, role: decode}"
    for added in (both, "tp: 1}\n  - {model: llama-3.1-8b, gpu: A100-80GB, tp: 2}"):
        scenario = parse(TEXT.replace("tp: 1}", added))
        assert len(scenario.profiles) == 2
        assert parse(dump(scenario)) == scenario
