"""Several models on one GPU, replayed request by request."""
