"""A study as one HTML file. Needs ``pip install 'ringreduce[study]'``."""
