"""A cell's HTTP API: Saxml's calls and OpenAI's, and the way from both to a published model's own application."""
