"""A fleet of one model on one GPU type in one region, as scenarios of tests have it."""

FLEET = """\
models:
  - {name: m, weight_gb: 16, kv_bytes_per_token: 131072, max_context: 131072}
gpus:
  - {name: G, memory_gb: 80, idle_w: 60, prefill_w: 400, decode_w: 250}
profiles:
  - {model: m, gpu: G, alpha_ms: 12, beta_ms: 0.15, gamma_ms: 12, delta_ms: 0.06}
regions:
  - {name: east, capacity: {G: 32}, usd_per_gpu_hour: {G: 2}, carbon_g_per_kwh: 400, pue: 1.2}
tiers:
  - {name: chat, ttft_ms: 1000, tbt_ms: 100}
"""
