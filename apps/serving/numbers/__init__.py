"""Numbers of files that others have made: their ranges, and whether they are finite."""
