"""Make profiles from measurements, on plain data. The services store the profiles as rows."""
