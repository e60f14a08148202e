"""States of an instance.

An instance is off, starts (using GPU time), is ready, drains, and is off again. Or it is lent out
as spot, and a start brings it back.
"""

OFF, STARTING, READY, DRAINING, LENT = 0, 1, 2, 3, 4
STATUSES = 5
