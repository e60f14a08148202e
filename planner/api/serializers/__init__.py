"""Define the shapes of requests and answers, without business rules."""
