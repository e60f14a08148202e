"""The scenario file: text, types and the step from them to the core's values. No Django."""
