"""Schema of the ledger's SQLite file. A change of it raises `FORMAT` and needs a step that reads the one before."""

FORMAT = 1

# batch     one row for each request id. An open batch has no `ended_at`; an expired one has `expired_at`, no samples.
#           `seq` numbers its changes; `age_at` is the reading of the ledger's own clock at its end (see `age`).
# sample    what was asked (name, seed) and the state; small, because a start reads all of the open batches.
# detail    what became of a sample; `about` is for views, `result` for the response. Compressed JSON objects.
# event     what watchers are told, by the number of the change.
# clock     one row: the ledger's clock when it was last written.
SCHEMA = (
    """CREATE TABLE batch (
        id INTEGER PRIMARY KEY,
        request_id TEXT NOT NULL UNIQUE,
        tenant TEXT,
        body_sha256 TEXT NOT NULL,
        model TEXT NOT NULL,
        engine TEXT NOT NULL,
        created_at REAL NOT NULL,
        detached INTEGER NOT NULL DEFAULT 0,
        started_at REAL,
        cancelled_at REAL,
        ended_at REAL,
        age_at REAL,
        state TEXT,
        bytes INTEGER NOT NULL DEFAULT 0,
        expired_at REAL,
        damage TEXT,
        seq INTEGER NOT NULL
    )""",
    "CREATE INDEX batch_by_tenant ON batch (tenant, created_at, request_id)",
    """CREATE TABLE sample (
        batch INTEGER NOT NULL REFERENCES batch (id) ON DELETE CASCADE,
        i INTEGER NOT NULL,
        name TEXT NOT NULL,
        seed INTEGER NOT NULL,
        state TEXT NOT NULL,
        code TEXT,
        PRIMARY KEY (batch, i)
    ) WITHOUT ROWID""",
    "CREATE INDEX sample_by_name ON sample (batch, name)",
    """CREATE TABLE detail (
        batch INTEGER NOT NULL,
        i INTEGER NOT NULL,
        about BLOB,
        result BLOB,
        UNIQUE (batch, i),
        FOREIGN KEY (batch, i) REFERENCES sample (batch, i) ON DELETE CASCADE
    )""",
    """CREATE TABLE event (
        batch INTEGER NOT NULL REFERENCES batch (id) ON DELETE CASCADE,
        seq INTEGER NOT NULL,
        type TEXT NOT NULL,
        i INTEGER,
        state TEXT NOT NULL,
        code TEXT,
        at REAL NOT NULL,
        PRIMARY KEY (batch, seq)
    ) WITHOUT ROWID""",
    "CREATE TABLE clock (id INTEGER PRIMARY KEY CHECK (id = 1), age REAL NOT NULL, wall REAL NOT NULL)",
)
