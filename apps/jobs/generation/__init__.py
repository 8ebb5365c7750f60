"""The parts of `python -m apps.jobs.generate`, each usable and tested alone.

source.py    which config CONFIG_OR_MODEL means
requests.py  a line of the input -> a request; its result -> a line of the output
replica.py   one replica: the engine, and a chunk of lines through it (a Ray Data actor)
deaths.py    fails the run when replicas die again and again without an answer in between
cluster.py   the Ray cluster that a run uses
pipeline.py  lines -> replicas -> answers, as a Ray Data pipeline
parts.py     the output, the answers saved so far that let a killed run be resumed, and the lock for one run at a time
progress.py  the progress bar and log lines

`apps.llm.batch_api` reads the input and stores the answers; it serves the batch API too.
"""
