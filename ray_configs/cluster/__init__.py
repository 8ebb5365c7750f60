"""What services and jobs have in common: the Ray cluster, its worker groups, its versions."""
