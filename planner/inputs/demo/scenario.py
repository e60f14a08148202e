"""Hold the YAML template of the demo's scenario."""

DEMO_NAME = "Demo: two models, two regions"

DEMO_SCENARIO = """\
# What a newcomer sees first. Copy it, or start from a trace of your own.
version: 1
name: "Demo: two models, two regions"
description: >-
  A week of a coding agent and a chat service with long prompts, drawn from published statistics.
  Chat has separate prefill and decode pools.
  The last day is planned with what was known before it, and replayed.
seed: 1

models:
  - mistral-large-123b # the coding agent
  - llama-3.1-70b # chat

profiles:
  - {model: mistral-large-123b, gpu: A100-80GB, tp: 4, kind: roofline}
  - {model: llama-3.1-70b, gpu: A100-80GB, tp: 4, kind: roofline, role: prefill}
  - {model: llama-3.1-70b, gpu: A100-80GB, tp: 4, kind: roofline, role: decode}

regions:
  - name: us-east
    like: us-east-1
    capacity: {A100-80GB: 256} # GPUs
    latency_ms: {us-west: 32}
  - name: us-west
    like: us-west-2
    capacity: {A100-80GB: 256}

tiers:
  - {name: interactive, ttft_ms: 30000, tbt_ms: 100, percentile: 95} # Mooncake's limits
  - {name: agent, ttft_ms: 30000, percentile: 95} # nobody reads along
  - {name: batch, e2e_ms: 86400000, percentile: 99, deferrable: true} # within a day

traffic:
  sources:
    - trace: TRACE # carries its own model, region and tier labels

fleet:
  startup_s: 600 # weights are at hand in the region
  today: # a guess
    - {model: mistral-large-123b, region: us-east, gpu: A100-80GB, replicas: 10}
    - {model: mistral-large-123b, region: us-west, gpu: A100-80GB, replicas: 7}
    - {model: llama-3.1-70b, region: us-east, gpu: A100-80GB, role: prefill, replicas: 6}
    - {model: llama-3.1-70b, region: us-east, gpu: A100-80GB, role: decode, replicas: 2}
    - {model: llama-3.1-70b, region: us-west, gpu: A100-80GB, role: prefill, replicas: 5}
    - {model: llama-3.1-70b, region: us-west, gpu: A100-80GB, role: decode, replicas: 2}

policies:
  - today
  - flat-before
  - lt-g

# The usual list is longer. This one keeps the first run short.
test_days:
  - {kind: past, windows: 1}
  - {kind: replica_lost}
  - {kind: more_demand} # the day of the level Safe

objective:
  epsilon: 0.8
  baseline: today

horizon:
  duration_s: 86400
  period_s: 3600
"""


def demo_scenario(trace: str) -> str:
    """Return the demo's scenario for the stored trace of that name."""
    return DEMO_SCENARIO.replace("TRACE", trace)
