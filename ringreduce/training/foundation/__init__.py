"""The parts that all kinds of training share: buckets, their assignment and exchange, shards, agreement, transfer."""
