"""When plans are computed again, and how one differs from the one before."""
