"""Ray's own autoscaler, as KubeRay runs it beside the head: what it asks for, the emulated cluster does.

It reads and patches the RayCluster, and reads the Pods; here these are the files of `objects`. `autoscaler` runs its
process, which is `apps.serving.machines.autoscaler`.
"""
