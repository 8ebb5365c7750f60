"""The Google Cloud resources that a config needs: `python -m kuberay node-pools CONFIG`.

`pools` plans the node pools. `scripts` fills in templates: bash scripts that create or delete them with everything else
that the config needs, and a main.tf.json for Terraform.
"""

from kuberay.node_pools.pools import Pool, pools
from kuberay.node_pools.scripts import commands, teardown, terraform

__all__ = ["Pool", "commands", "pools", "teardown", "terraform"]
