"""Large inputs as a queue of parts: split, worked on by any number of machines, published part by part, then indexed.

    sources.py    what --input-path names, read in order
    split.py      samples into parts that a service accepts
    planning.py   the plan: made once, stored at the output place, joined by everybody else
    place.py      records at the output place; `records.py` says what they hold
    leases.py     which worker has a part
    endpoints.py  which service a part is sent to
    attempts.py   what a failed attempt means
    board.py      where every part stands, and the figures
    worker.py     the loop that brings parts, leases, endpoints and a runner together
    work.py       what is asked of whoever makes and does the parts
    batches.py    parts as batches of a generator
    generator.py  the runner that sends a part to a generator; a reasoner's is in reasoner_client/batch/
    database.py   the queue on this machine, in SQLite: its options and progress
    results.py    how parts ended
    index.py      the last object: names every part
    run.py        the doors: work on a queue; state.py: look at it, and say what is wanted of it

The output place is the only thing that workers share. A worker that dies at any point leaves nothing that another one
could not continue: a part is leased, then published by the batch client with that client's own claims, then recorded.
"""
