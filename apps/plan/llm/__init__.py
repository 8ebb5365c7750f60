"""The plan of a language model.

`program` compiles the engine's own steps, `kernel` adds the attention kernel's share, `capacity` works out what fits,
`planner` puts it together, `search` tries other slices.
"""
