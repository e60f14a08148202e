"""Write a plan as Kubernetes objects: one module per format, each object validated."""
