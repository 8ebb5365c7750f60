"""What a config needs on Google Cloud before its manifests can run: `python -m kuberay node-pools CONFIG`.

`pools` plans the TPU node pools. `scripts` fills bash scripts to read and run, with the node pools and everything
around them; `terraform` writes a main.tf.json.
"""

from kuberay.node_pools.pools import Pool, pools
from kuberay.node_pools.scripts import commands, teardown
from kuberay.node_pools.terraform import terraform

__all__ = ["Pool", "commands", "pools", "teardown", "terraform"]
