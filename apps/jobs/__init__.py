"""Jobs that run to completion. Each is a command with exit status 0 (done), 1 (failed) or 2 (wrong arguments).

- `python -m apps.jobs.smoke`: tests that all hosts and chips of a slice work together.
- `python -m apps.jobs.prepare`: lays a checkpoint out as the engine keeps it in memory.
- `python -m apps.jobs.generate`: answers many prompts, without a server.
"""
