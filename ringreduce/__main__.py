"""``python -m ringreduce``: the command line."""

import sys

from ringreduce.descriptors import above_standard, with_standard_streams


@above_standard()
def main() -> int:
    with_standard_streams()
    if sys.argv[1:2] == ["run"]:  # do not delay the ranks with imports that it does not need
        from ringreduce.start import command

        return command.main(sys.argv[2:])
    from ringreduce import cli

    return cli.main()


if __name__ == "__main__":
    raise SystemExit(main())
