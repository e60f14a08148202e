"""Compare an active plan with the traffic that actually came (plan versus actual)."""
