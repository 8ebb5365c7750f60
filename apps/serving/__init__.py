"""What every Serve application needs, whatever it serves.

ingress/         how HTTP reaches an application: keys, bodies, streams, errors
replica_options  deployment options that follow from a config
compilation      the compile cache, and the count of what is compiled
files            atomic files, locks and leases
replica          a process that hosts an engine
metrics, errors  of any engine
progress         of long work: on a terminal, in the log, to `podslice serve`
private_ray      every use of Ray's private API
event_loops      from an engine's thread to readers in event loops
model_folder     a model's files: in a local folder, on the hub, in a bucket
model_files/     which places callers may name, and what a file's header may say
program_cache    JAX's compile cache on disk, which damage does not stop
logs/            one line of a log for each record
"""

from apps.serving.logs.one_line import keep_to_one_line

keep_to_one_line()
