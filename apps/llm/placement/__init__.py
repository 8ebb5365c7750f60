"""Which of several prefix caches a request goes to: by what each of them has and what it still has to compute.

An engine chooses between its DP ranks with it. It counts pages and tokens, and needs no engine, no JAX and no text:
`tools/route_trace.py` runs it over recorded traffic.
"""
