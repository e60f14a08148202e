"""Scaling policies as a scenario names them: one file each in ``builtin``, with its words and their
defaults, its traits, and how it is made on a study. No Django."""
