"""``python -m ringreduce``: the command line."""

from ringreduce.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
