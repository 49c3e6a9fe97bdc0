"""Training: data parallel, sharded, compressed, with few messages, with parameter servers, elastic; and a trainer."""
