"""Read what users give: traces, scenarios, the catalogue of hardware, profiles and estimates."""
