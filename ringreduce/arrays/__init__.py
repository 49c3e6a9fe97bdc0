"""Arrays: making them, making awkward ones contiguous, and moving them between memories."""
