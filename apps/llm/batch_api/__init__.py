"""OpenAI's Files and Batch APIs: files of requests, answered in the engine's idle capacity.

storage.py     the folder or bucket that all replicas share, and its layout
files.py       uploaded and written files, each owned by an API key
records.py     batches: the request, its progress, its cancellation and its result
upload.py      multipart uploads, streamed to storage
http.py        /v1/files and /v1/batches
lines.py       the JSON of request lines and response lines
input_file.py  an input file, read in spans of lines
parts.py       saved answers, so that a killed replica loses little work
validation.py  the checks of a file before its first request runs
work.py        one batch, from validation to its output files
outputs.py     a batch's output file and error file
asking.py      sends each line to the server's own application
runner.py      the batches that this replica works on, by their leases

A batch's life: `http` records it; a replica's `runner` takes its lease; `work` validates the file, sends each line to
the server's own application, saves the answers, and writes the output. If the replica dies, another one takes over the
lease once it has expired, and sends the lines that have no saved answer.

`python -m apps.jobs.generate` shares lines, input files and parts with this package.
"""
