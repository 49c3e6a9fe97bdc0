"""Starting programs as ranks: ``ringreduce run``."""
