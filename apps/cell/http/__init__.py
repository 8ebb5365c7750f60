"""A cell's HTTP API: Saxml's and OpenAI's calls, relayed to the published models' own applications."""
