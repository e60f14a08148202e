"""From measurements to profiles, on plain data: services keep what comes of it as rows."""
