"""Many questions from an object store to an object store: a queue whose parts are questions of OpenAI's batch format.

    questions.py  what a line must be, and the body of a part
    log.py        answers of a part on this machine's disk, so that no question is asked twice
    line.py       one answer as a line of answers.jsonl
    runner.py     asks the questions of a part and publishes their answers; its options

The queue itself (parts, leases, several machines, pause and resume) is `cosmos3_serve.queue`.
"""
