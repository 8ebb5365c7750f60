"""One real size of each family that people run on TPUs, each on a v6e slice chosen for 25 ms per token.

By `podslice plan ray_configs.catalog.models.NAME --search --ms-per-token 25 --generation v6e --context 2048`, but for
Gemma 4: its floor on this slice is below 25 ms, its estimate is not.
"""
