"""Hold the example bodies of the OpenAPI document; a test sends each of them."""

GPU = {
    "name": "X100", "memory_gb": 96, "idle_w": 70, "prefill_w": 700, "decode_w": 450,
    "bandwidth_gb_s": 3350, "bf16_tflops": 990, "kind": "published", "source": "its data sheet",
}  # fmt: skip
MODEL = {
    "name": "my-model", "weight_gb": 16.1, "kv_bytes_per_token": 131072, "max_context": 32768,
    "source": "own count",
}  # fmt: skip
CONFIG = {
    "name": "my-llama", "kind": "published", "source": "its config.json", "config": {
        "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "vocab_size": 128256,
        "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
        "max_position_embeddings": 131072,
    },
}  # fmt: skip
FIT = {
    "name": "chat on our H100", "kind": "linear", "model": "llama-3.1-8b", "gpu": "H100-SXM",
    "tp": 1, "rows_model": "meta-llama/Llama-3.1-8B-Instruct", "rows_gpu": "H100",
}  # fmt: skip
COMPUTED = {
    "name": "8b on H200 by its peaks", "kind": "roofline", "model": "llama-3.1-8b", "gpu": "H200",
    "tp": 1,
}  # fmt: skip
OBSERVED = {
    "profile": "chat on our H100",
    "observations": [
        {"at_s": 0, "decodes": 32, "prefill_tokens": 0, "seconds": 0.021},
        {"at_s": 60, "decodes": 48, "prefill_tokens": 0, "seconds": 0.024},
    ],
}
DEPLOYMENT = {
    "model": "meta-llama/Llama-3.1-8B-Instruct", "gpu": "H100-SXM", "tp": 1, "engine": "vllm",
    "isl": 1024, "osl": 256, "concurrency": 32,
}  # fmt: skip
COMPARED = {"profile": "chat on our H100", "rows_gpu": "H100", "rows_model": "llama"}
CONFIGURED = {
    "model": "llama-3.1-8b", "isl": 1024, "osl": 128, "ttft_ms": 1000, "tbt_ms": 50,
    "gpus": ["A100-80GB"], "top": 2,
}  # fmt: skip
CHOSEN = {
    "model": "llama-3.1-8b", "scenario": "Chat in one region",
    "profiles": [{"model": "llama-3.1-8b", "gpu": "H100-SXM", "kind": "roofline", "tp": 2}],
}  # fmt: skip
