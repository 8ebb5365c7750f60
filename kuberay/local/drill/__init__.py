"""`--kill-slice`, `--preempt-slice`, `--upgrade` and `--from-zero`: what carries the streams goes, most while they are
answered, and the verdict says what became of each of them.

`kinds` are the requests. `streams` asks them again and again and holds each answer against an undisturbed one. `kills`
is what the run's loop calls: it waits until the service is whole, kills, and counts.
"""
