"""OpenAI's Files and Batch APIs: files of requests, answered when the engine has places to spare.

storage.py     the folder or bucket that all replicas share, and what of it is whose
files.py       files in it: whole or not at all, each its key's
records.py     batches in it: what was asked for, how far it is, that it is to be cancelled, how it ended
upload.py      a form's file, written to its place as it comes
http.py        /v1/files and /v1/batches
lines.py       a line of a batch's file, and the line that answers it
input_file.py  a file of requests, span by span
parts.py       answers on disk, so that a killed replica costs nothing that was answered
validation.py  what must be right of a file before any line is asked
work.py        one batch, from its file to its end
outputs.py     its two files of answers and errors
asking.py      the server's own application, asked line by line
runner.py      which batches this replica works on: it holds their leases

A batch's life: `http` records it; a replica's `runner` takes its lease; `work` validates the file, asks the server's
own application line by line, saves the answers, and writes the output. If the replica dies, another one takes the lease
when it has seen it unchanged for long enough, and asks what has no saved answer.

`python -m apps.batch.generate` has lines, input and parts in common with this.
"""
