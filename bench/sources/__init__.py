"""Headline figures of the five sources beside ours, and independent checks of their algorithms."""
