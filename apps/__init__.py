"""What runs in the cluster: Ray Serve applications and jobs."""
