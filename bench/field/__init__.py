"""Compare the capabilities of today's field with published laws and real systems."""
