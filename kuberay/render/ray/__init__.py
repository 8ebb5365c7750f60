"""The Ray cluster of a service or job: its groups and Pods, and its Serve config."""
