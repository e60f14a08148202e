"""Times at which plans are computed again, and the difference between two plans."""
