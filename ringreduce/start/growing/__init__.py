"""Groups that admit newcomers."""
