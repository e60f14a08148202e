"""Models that share GPUs: which ones together, by which means, and what requests then see."""
