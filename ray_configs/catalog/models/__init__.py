"""One real size of each family that people run on TPUs, each on the v6e slice that a search chooses.

By `podslice plan ray_configs.catalog.models.NAME --search --ms-per-token 25 --generation v6e --context 2048`, with 30
for Gemma 4: the estimate for its 8 chips is 29 ms. Muse Glimmer's and Qwen3.5's slices were planned alone.
"""
