"""torch's own tests of a torch.distributed backend, the classes that ship in its wheel, run against any backend.

    python -m tests.frameworks.torch.suite --backend ringreduce --worlds 2,3,4     # beside Gloo; ends with a table
    python -m tests.frameworks.torch.suite --test test_all_reduce_sum --worlds 3   # one test, with its output

cases      torch's classes, made to choose as for Gloo and to run with another backend
rank       what one rank of one test does
server     a process that has imported torch and forks the ranks of one test after the other
client     starts servers and asks them
stacks     what a test that hangs was doing
outcome    what became of a test; the file in which outcomes are kept
report     the table beside Gloo, the list of what fails
files      torch's test files, of a checkout of PyTorch, with ours in Gloo's place; forked, a plugin for pytest there
expected   the tests that may not pass, each with its reason (expected.json)
"""
