"""Jobs that end. Each is a command whose exit status says how: 0 done, 1 failed, 2 wrong arguments.

- `python -m apps.batch.smoke`: tests that all hosts and chips of a slice work together.
- `python -m apps.batch.prepare`: lays a checkpoint out as the engine keeps it in memory.
- `python -m apps.batch.generate`: answers many prompts, without a server.
"""
