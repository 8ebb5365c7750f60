"""A token engine of another process, reached over ZeroMQ: encrypted, and only for those who have its keys.

`served` is the replica's side, `remote` the router's; `messages` has what they say to each other.
"""
