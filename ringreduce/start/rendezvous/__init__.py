"""Where and how the ranks of a job meet, before they are connected."""
