"""Makes the map of the README: python docs/pictures/make.py FOLDER, the folder of a study."""

from __future__ import annotations

import sys
from pathlib import Path

from ringreduce.study import load
from ringreduce.study.report import write_map

write_map(load(sys.argv[1]), Path(__file__).with_name("winners.svg"))
