"""The Ray cluster of a service or job: its groups and Pods, and what Serve deploys in it."""
