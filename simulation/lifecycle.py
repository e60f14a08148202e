"""The life of an instance: off, starting (burning GPU time), ready, draining, off again."""

OFF, STARTING, READY, DRAINING = 0, 1, 2, 3
