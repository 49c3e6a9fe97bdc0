r"""The protocols of ranks that share memory, each with an outcome that must not be possible.

csrc/transport/memory has the code; csrc/transport/interface/orders.h has the orders. In an outcome, ``1:seen=1`` is
what thread 1 loaded into ``seen``. A register keeps 0 if its load was skipped.
"""

from __future__ import annotations

from tests.engine.memory_model.litmus import Fence, Load, Protocol, Store, Swap, When

PROTOCOLS = [
    # --- slot and flag
    Protocol(
        "slot and flag: a rank that sees the flag sees the payload",
        [
            [Store("payload", 1), Store("flag", 1, "message_written")],
            [Load("seen", "flag", "message_seen"), When("seen", 1), Load("value", "payload")],
        ],
        r"1:seen=1 /\ 1:value=0",
    ),
    Protocol(
        "slot used again: the next message in a slot does not reach the reader of the last one",
        [
            [Load("room", "read", "room_seen"), When("room", 1), Store("payload", 2)],
            [Load("value", "payload"), Store("read", 1, "message_read")],
        ],
        r"1:value=2",
    ),
    Protocol(
        "broadcast slot used again: a rank tells for the third time where others have read the first",
        [
            [Load("second", "theirs", "message_seen"), When("second", 1), Store("payload", 3)],
            [Load("value", "payload"), Store("theirs", 1, "message_written")],
        ],
        r"1:value=3",
    ),
    Protocol(
        "passed on: what a rank writes after it has read a message is later than the message, for others too",
        [
            [Store("payload", 1), Store("first", 1, "message_written")],
            [Load("seen", "first", "message_seen"), When("seen", 1), Store("second", 1, "message_written")],
            [Load("seen", "second", "message_seen"), When("seen", 1), Load("value", "payload")],
        ],
        r"2:seen=1 /\ 2:value=0",
    ),
    # --- lend and grant
    Protocol(
        "loan: the lender's next values do not reach the reader",
        [
            [
                *(Store("lent", 1), Store("flag", 1, "message_written")),
                *(Load("room", "read", "room_seen"), When("room", 1), Store("lent", 2)),
            ],
            [
                *(Load("seen", "flag", "message_seen"), When("seen", 1)),
                *(Load("value", "lent"), Store("read", 1, "message_read")),
            ],
        ],
        r"1:seen=1 /\ not (1:value=1)",
    ),
    Protocol(
        "grant: the lender sees what was written where it granted, once its loan is read",
        [
            [
                *(Store("granted", 1), Store("flag", 1, "message_written")),
                *(Load("room", "read", "room_seen"), When("room", 1), Load("value", "granted")),
            ],
            [
                *(Load("seen", "flag", "message_seen"), When("seen", 1)),
                *(Store("granted", 2), Store("read", 1, "message_read")),
            ],
        ],
        r"0:room=1 /\ not (0:value=2)",
    ),
    Protocol(
        "delivery: the lender sees what was written where it granted, once that is announced",
        [
            [
                *(Store("granted", 1), Store("flag", 1, "message_written")),
                *(Load("seen", "delivered", "message_seen"), When("seen", 1), Load("value", "granted")),
            ],
            [
                *(Load("seen", "flag", "message_seen"), When("seen", 1)),
                *(Store("granted", 2), Store("delivered", 1, "message_written")),
            ],
        ],
        r"0:seen=1 /\ not (0:value=2)",
    ),
    # --- doorbell
    Protocol(
        "doorbell: a sleeper that knows of a ring sees the message, and does not sleep over it",
        [
            [Store("flag", 1, "message_written"), Swap("bell", 1, "rung")],
            [
                Swap("sleepers", 1, "asleep"),
                Load("known", "bell", "armed"),
                Load("seen", "flag", "message_seen"),
            ],
        ],
        r"1:known=1 /\ 1:seen=0",
    ),
    Protocol(
        "doorbell of an abort: the same, for a rank that looks for the abort",
        [
            [Swap("aborted", 1, "abort_told"), Swap("bell", 1, "rung")],
            [Load("known", "bell", "armed"), Load("seen", "aborted", "abort_seen")],
        ],
        r"1:known=1 /\ 1:seen=0",
    ),
    # --- fate
    Protocol(
        "abort: a rank that sees the abort sees its reason",
        [
            [Store("reason", 1), Swap("aborted", 1, "abort_told")],
            [Load("seen", "aborted", "abort_seen"), When("seen", 1), Load("value", "reason")],
        ],
        r"1:seen=1 /\ 1:value=0",
    ),
    Protocol(
        "abort passed on: a rank that hears it from another one sees the reporter's reason",
        [
            [Store("reason", 1), Swap("first", 1, "abort_told")],
            [Load("seen", "first", "abort_seen"), When("seen", 1), Swap("second", 1, "abort_told")],
            [Load("seen", "second", "abort_seen"), When("seen", 1), Load("value", "reason")],
        ],
        r"2:seen=1 /\ 2:value=0",
    ),
    Protocol(
        "access and abort: a rank that aborts and finds no access may change what it lent",
        [
            [
                *(Swap("aborted", 1, "abort_told"), Load("accesses", "accesses", "accesses_seen")),
                *(When("accesses", 0), Store("lent", 2)),
            ],
            [
                *(Swap("accesses", 1, "access_begun"), Load("aborted", "aborted", "abort_seen_by_access")),
                *(When("aborted", 0), Load("value", "lent"), Swap("accesses", 0, "access_ended")),
            ],
        ],
        r"1:aborted=0 /\ 1:value=2",
    ),
    Protocol(
        "abort that was heard: the same, for a rank that another one has told before",
        [
            [Swap("aborted", 1, "abort_told")],
            [
                *(Load("heard", "aborted", "abort_told"), When("heard", 1)),
                *(Load("accesses", "accesses", "accesses_seen"), When("accesses", 0), Store("lent", 2)),
            ],
            [
                *(Swap("accesses", 1, "access_begun"), Load("aborted", "aborted", "abort_seen_by_access")),
                *(When("aborted", 0), Load("value", "lent"), Swap("accesses", 0, "access_ended")),
            ],
        ],
        r"2:aborted=0 /\ 2:value=2",
    ),
    Protocol(
        "loan changed after an abort: whoever reads it nevertheless sees the abort afterwards",
        [
            [
                *(Swap("aborted", 1, "abort_told"), Load("accesses", "accesses", "accesses_seen")),
                *(Fence("abort_is_out"), Store("lent", 2, "racing")),
            ],
            [
                *(Load("value", "lent", "racing"), Fence("lent_was_read")),
                Load("aborted", "aborted", "abort_seen"),
            ],
        ],
        r"1:value=2 /\ 1:aborted=0",
    ),
    Protocol(
        "last message: a rank that sees another one closed sees all that it has sent",
        [
            [Store("flag", 1, "message_written"), Store("closed", 1, "all_sent")],
            [Load("closed", "closed", "closed_seen"), Load("seen", "flag", "message_seen")],
        ],
        r"1:closed=1 /\ 1:seen=0",
    ),
    # --- arenas
    Protocol(
        "arena used again: its room waits for all readers",
        [
            [
                *(Load("one", "first", "room_seen"), When("one", 1)),
                *(Load("two", "second", "room_seen"), When("two", 1), Store("room", 2)),
            ],
            [Load("value", "room"), Store("first", 1, "message_read")],
            [Load("value", "room"), Store("second", 1, "message_read")],
        ],
        r"1:value=2 \/ 2:value=2",
    ),
    Protocol(
        "arena written again: a reader sees the new payload with the new flag",
        [
            [
                *(Load("room", "read", "room_seen"), When("room", 1)),
                *(Store("payload", 2), Store("flag", 2, "message_written")),
            ],
            [
                *(Load("old", "payload"), Store("read", 1, "message_read")),
                *(Load("seen", "flag", "message_seen"), When("seen", 2), Load("value", "payload")),
            ],
        ],
        r"1:old=2 \/ (1:seen=2 /\ not (1:value=2))",
    ),
    # --- what ranks compare
    Protocol(
        "record: a rank that sees the count of calls sees the last one",
        [
            [Store("history", 1, "history_written"), Store("count", 1, "call_recorded")],
            [Load("count", "count", "calls_seen"), Load("value", "history", "relaxed")],
        ],
        r"1:count=1 /\ 1:value=0",
    ),
    Protocol(
        "record overwritten: a rank that reads a later call sees that the count has gone on",
        [
            [Store("count", 1, "call_recorded"), Store("history", 2, "history_written")],
            [Load("value", "history", "relaxed"), Fence("history_seen"), Load("count", "count", "relaxed")],
        ],
        r"1:value=2 /\ 1:count=0",
    ),
    Protocol(
        "who is waited for: a rank that sees when it was said sees what",
        [
            [Store("rank", 1, "relaxed"), Store("time", 1, "said")],
            [Load("time", "time", "said_seen"), Load("rank", "rank", "relaxed")],
        ],
        r"1:time=1 /\ 1:rank=0",
    ),
    Protocol(
        "board: a rank that finds the same even version twice has read one board",
        [
            [
                *(Store("version", 1, "relaxed"), Fence("board_opened")),
                *(
                    Store("one", 1, "relaxed"),
                    Store("two", 1, "relaxed"),
                    Store("version", 2, "board_written"),
                ),
            ],
            [
                *(Load("before", "version", "board_seen"), Load("one", "one", "relaxed")),
                *(Load("two", "two", "relaxed"), Fence("board_read"), Load("after", "version", "relaxed")),
            ],
        ],
        r"(1:before=0 /\ 1:after=0 /\ not (1:one=0 /\ 1:two=0))"
        r" \/ (1:before=2 /\ 1:after=2 /\ not (1:one=1 /\ 1:two=1))",
    ),
]

# What the code allows for: such a ring is missed, and the limit of the sleep makes up for it.
MISSED_RING = Protocol(
    "missed ring: a message may pass its reader while the reader falls asleep",
    [
        [Store("flag", 1, "message_written"), Load("sleepers", "sleepers", "sleepers_seen")],
        [Swap("sleepers", 1, "asleep"), Load("known", "bell", "armed"), Load("seen", "flag", "message_seen")],
    ],
    r"0:sleepers=0 /\ 1:seen=0",
)

# Orders that no protocol needs: they only make a missed ring rare.
BEST_EFFORT = {"asleep"}

# Orders that were weaker once, which x86 forgives.
MENDED = {
    "history_written": "record overwritten",
    "said": "who is waited for",
    "said_seen": "who is waited for",
}
