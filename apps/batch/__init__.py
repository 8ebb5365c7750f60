"""Jobs that end, each a command that says by its exit status how: 0 done, 1 failed, 2 wrong arguments.

- `python -m apps.batch.smoke`: do all hosts and chips of a slice work together?
- `python -m apps.batch.prepare`: a checkpoint, laid out as the engine keeps it in memory.
- `python -m apps.batch.generate`: answers to many prompts, without a server.
"""
