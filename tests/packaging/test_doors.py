"""The short names of modules: the same modules as under their full names."""

from pathlib import Path

import pytest

from ringreduce import doors
from tests.conftest import slowly
from tests.processes import python


def words_of(code):
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_every_short_name_leads_to_a_room_of_its_wing():
    package = Path(doors.__file__).parent
    for short, full in doors.DOORS.items():
        assert (package / full.replace(".", "/") / "__init__.py").exists()
        assert not (package / f"{short}.py").exists() and not (package / short).exists()
        assert doors._behind_door(f"ringreduce.{short}.x") == f"ringreduce.{full}.x"
    assert doors._behind_door("ringreduce.start") is None
    assert doors._behind_door("horovod.torch") is None


@pytest.mark.parametrize(
    "first", ["ringreduce.simulate.network", *slowly("ringreduce.studies.simulate.network")]
)
def test_both_names_are_one_module(first):
    second = first.replace(".studies", "") if ".studies" in first else first.replace(".sim", ".studies.sim")
    code = f"""
import importlib
one, other = importlib.import_module("{first}"), importlib.import_module("{second}")
print(one is other, one.__name__, one.__spec__.name)
from ringreduce import simulate, study
print(simulate.Network is one.Network, study.__name__)
"""
    full = "ringreduce.studies.simulate.network"
    assert words_of(code) == ["True", full, full, "True", "ringreduce.studies.study"]


def test_a_module_that_is_not_there_is_not_found():
    with pytest.raises(ModuleNotFoundError, match=r"ringreduce\.simulate\.nothing"):
        import ringreduce.simulate.nothing  # noqa: F401


def test_a_package_runs_under_its_short_name():
    done = python("-m", "ringreduce.train", "--help")
    assert done.returncode == 0 and "python -m ringreduce.train" in done.stdout
