"""Module-level provisioning: layers replicated and moved between GPUs (CoCoServe, methods.md B)."""
