"""From typed configs to Kubernetes: render, node pools, check, apply, status, and a local emulation of GKE."""
