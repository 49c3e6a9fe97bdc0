"""Groups that let newcomers in."""
