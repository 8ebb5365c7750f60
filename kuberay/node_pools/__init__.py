"""The Google Cloud resources that a config needs: `python -m kuberay node-pools CONFIG`.

`pools` plans the node pools. `scripts` writes bash scripts that create or delete them with everything else that the
config needs; `terraform` writes a main.tf.json.
"""

from kuberay.node_pools.pools import Pool, pools
from kuberay.node_pools.scripts import commands, teardown
from kuberay.node_pools.terraform import terraform

__all__ = ["Pool", "commands", "pools", "teardown", "terraform"]
