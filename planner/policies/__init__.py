"""Scaling policies that a scenario can name. No Django.

Each file in ``builtin`` declares policies: parameters with defaults, traits, and how to build them.
"""
