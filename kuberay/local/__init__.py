"""`python -m kuberay local`: runs a config's service on one machine, as GKE would.

`hosts` derives the hosts from the rendered RayService as KubeRay, GKE's device plugin and the TPU webhook would.
`cluster` starts a raylet for each, with JAX CPU devices for chips, and recreates the whole slice when one of its hosts
dies; `autoscaling` has slices come and go. `dashboard` deploys the rendered serveConfigV2. `running` is the
main loop, until Ctrl-C.

    plan = plan_of(rayservice, address="127.31.64.1")   # pure: nothing is started
    run(service, LocalOptions(port=8000))                     # blocks; leaves nothing behind
"""

from kuberay import Refusal


class LocalError(Refusal):
    """The service cannot run here, or not with these options; the text says why and what to do."""


class ServiceFailed(LocalError):
    """The cluster started but its service failed; the text is Serve's or Ray's."""

    status = 1
