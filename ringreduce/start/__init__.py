"""Starting ranks and connecting them: launchers, meeting places, and ``ringreduce run``."""
