"""Configure the settings, URLs and entry points: web server, worker, scheduler."""
