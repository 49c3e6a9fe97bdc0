"""How ranks start and meet: launchers, places to meet at, and ``ringreduce run``."""
