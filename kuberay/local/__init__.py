"""`python -m kuberay local`: runs a config's service on one machine, as GKE would.

`hosts` reads the rendered RayService as KubeRay, GKE's device plugin and the TPU webhook would: which hosts there are,
and how each looks to Ray. `cluster` starts a raylet for each, with JAX CPU devices for chips, and recreates a slice
whole when one of its hosts dies. `dashboard` deploys the rendered serveConfigV2. `running` holds everything together
until Ctrl-C.

    plan = plan_of(rayservice, address="127.31.64.1")   # pure: nothing is started
    run(service, Wishes(port=8000))                     # blocks; leaves nothing behind
"""

from kuberay import Refusal


class LocalError(Refusal):
    """The service cannot be run here, or not as asked; the text says why and what to do."""


class ServiceFailed(LocalError):
    """The cluster started, and its service failed; the text is Serve's, or Ray's."""

    status = 1
