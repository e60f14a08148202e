"""Hold the YAML template of the demo's scenario."""

DEMO_NAME = "Demo: two models, two regions"

DEMO_SCENARIO = """\
# What a newcomer sees first. Copy it, or start from a trace of your own.
version: 1
name: "Demo: two models, two regions"
description: >-
  A week of a code and a chat service, drawn from published statistics of Azure's 2024 traces.
  The last day is planned with what was known before it, and replayed.
seed: 1

models:
  - {code_model}
  - {chat_model}

profiles:
{profiles}

regions:
  - name: us-east
    like: {like_east}
    capacity: {{{capacity}}} # GPUs
    latency_ms: {{us-west: 32}}
  - name: us-west
    like: {like_west}
    capacity: {{{capacity}}}

tiers:
  - {{name: interactive, ttft_ms: 1000, percentile: 95}} # IW-F of SageServe
  - {{name: relaxed, ttft_ms: 60000, percentile: 95}} # IW-N
  - {{name: batch, e2e_ms: 86400000, percentile: 99, deferrable: true}} # NIW: within a day

traffic:
  sources:
    - trace: {trace} # carries its own model, region and tier labels

fleet:
  startup_s: 600 # weights are at hand in the region
  today:
{today}

policies:
  - today
  - reactive
  - lt-i

# The usual list is longer. This one keeps the first run short.
test_days:
  - {{kind: past, windows: 1}}
  - {{kind: replica_lost}}

objective:
  epsilon: 0.8
  baseline: today

horizon:
  duration_s: 86400
  period_s: 3600
"""
