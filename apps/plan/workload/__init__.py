"""A workload: requests in time, by their lengths and shared prefixes; and the answer to what it takes to serve it."""
