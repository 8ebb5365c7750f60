"""Ready configs, each named for what it runs: `python -m kuberay render ray_configs.catalog.NAME`."""
