"""What every Serve application needs, whatever it serves.

ingress/         how HTTP reaches an application: keys, bodies, streams, errors
replica_options  deployment options that follow from a config
files            atomic files, locks and leases
replica          a process that hosts an engine
metrics, errors  of any engine
progress         of long work: on a terminal, in the log, to `podslice serve`
private_ray      every use of Ray's private API
event_loops      from an engine's thread to readers in event loops
model_roots      which places callers may name
logs/            one line of a log for each record
"""

from apps.serving.logs.one_line import keep_to_one_line

keep_to_one_line()
