"""Define thin views: parse the request, call a service or selector, render the answer."""
