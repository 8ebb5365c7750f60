"""The plan of a language model.

`program` compiles the engine's own steps, `kernel` adds the cost of the attention kernel, `capacity` computes what
fits, `planner` combines them into a plan, and `search` tries other slices.
"""
