"""One real size of each family that people run on TPUs, each on the cheapest v6e slice for 25 ms per token.

`podslice plan ray_configs.catalog.models.NAME --search --ms-per-token 25 --generation v6e --context 2048` found it.
"""
