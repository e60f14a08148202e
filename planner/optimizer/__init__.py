"""PlanningProblem in, ScalingPlan out. Pure: arrays and frozen dataclasses, no Django, no files."""
