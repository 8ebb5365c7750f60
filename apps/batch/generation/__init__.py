"""The parts of `python -m apps.batch.generate`, each usable and tested alone.

source.py    which config CONFIG_OR_MODEL means
requests.py  a line of the input -> a request; its result -> a line of the output
replica.py   one replica: the engine, and a chunk of lines through it (a Ray Data actor)
deaths.py    how often replicas may die without an answer in between
cluster.py   the Ray cluster that a run uses
pipeline.py  lines -> replicas -> answers, as a Ray Data pipeline
parts.py     the output, and what is kept beside it so that a killed run can be resumed; one run at a time
progress.py  the progress bar and log lines

The input file and the answers on disk are `apps.llm.batches`', which the server's batch API has too.
"""
