"""Machines that are about to go: who is told, and by whom.

Kubernetes ends a Pod: SIGTERM -> `ray start` drains its node ----+
`notices`: the machine's metadata server says so -> drains it ----+-> `leaving`: replicas see it within a second

`autoscaler` brings and removes those of `podslice local`, which has no Kubernetes.
"""
