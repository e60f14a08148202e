"""The life of an instance: off, starting (burning GPU time), ready, draining, off again; or lent
out as spot, from where it comes back by starting."""

OFF, STARTING, READY, DRAINING, LENT = 0, 1, 2, 3, 4
STATUSES = 5
