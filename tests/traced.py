"""What programs of JAX and TensorFlow keep of the communicators that they call, and what becomes of their calls."""

from __future__ import annotations

import weakref

from tests.processes import held


def come_and_go(comm, use, cycles):
    """Makes, uses and drops communicators. Returns what the process holds before and after, and how many live on."""
    made = []
    for number in range(5 + cycles):
        if number == 5:  # threads and caches have come
            before = held()
            comm.barrier()
        group = comm.split(0)
        made.append(weakref.ref(group))
        use(group)
        comm.barrier()  # no rank drops it while another one uses it
        if number % 2:
            group.close()
        del group
    after = held()
    return before[:3], after[:3], sum(one() is not None for one in made)


def no_program_keeps_a_communicator(found):
    for (threads, mapped, files), after, live in found:
        assert live == 0
        assert after == (threads, mapped, files)


def calls_after_the_end(comm, compiled, error_of):
    """The errors of programs whose communicators have been closed, and freed."""
    texts = []
    for end in ("close", "free"):
        group = comm.split(0)
        program = compiled(group)
        program()
        comm.barrier()
        if end == "close":
            group.close()
        else:
            del group
        texts.append(error_of(program))
        comm.barrier()
    return texts


def errors_say_what_became_of_it(found):
    for closed, freed in found:
        assert "the communicator is closed" in closed
        assert "has been freed: keep a communicator for as long as programs call it" in freed
