"""Whether a plan came true: what was held against what came."""
