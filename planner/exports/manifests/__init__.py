"""A plan as the objects that carry it out: one file per format, each checked before it leaves."""
