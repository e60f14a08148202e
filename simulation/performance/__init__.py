"""GPU and model facts, and how long an iteration takes on them."""
