-- The tables of Counterfoil. They live beside your own, in the same file.
--
-- Times are whole milliseconds since 1970, UTC.

-- Messages that are not delivered yet. Anybody may INSERT here; docs/book/sql-contract.md says how.
-- No column can make a writer fail: what is left out has a default, what is odd is parked later.
-- AUTOINCREMENT: a number that was once visible never comes back, also after its row is gone.
CREATE TABLE IF NOT EXISTS counterfoil_outbox (
    seq            INTEGER PRIMARY KEY AUTOINCREMENT,
    created_at     INTEGER DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000.0 + 0.5 AS INTEGER)),
    available_at   INTEGER,
    version        INTEGER,
    attempts       INTEGER DEFAULT 0,
    crashes        INTEGER DEFAULT 0,
    redriven       INTEGER DEFAULT 0,
    id             TEXT    DEFAULT (
        lower(hex(randomblob(4)) || '-' || hex(randomblob(2)) || '-4' || substr(hex(randomblob(2)), 2) || '-'
            || substr('89ab', 1 + (random() & 3), 1) || substr(hex(randomblob(2)), 2) || '-' || hex(randomblob(6)))
    ),
    queue          TEXT,
    aggregate_type TEXT,
    aggregate_id   TEXT,
    event_type     TEXT,
    state          TEXT,
    code           TEXT,
    error          TEXT,
    headers        TEXT,
    payload        TEXT,
    payload_bin    BLOB
);

-- CAST: a foreign writer may have stored a name as a blob; its bytes count, not its type.
-- Every index ends with seq by itself, because seq is the rowid.
CREATE INDEX IF NOT EXISTS counterfoil_outbox_id ON counterfoil_outbox (id);
CREATE INDEX IF NOT EXISTS counterfoil_outbox_new ON counterfoil_outbox (CAST(coalesce(queue, '') AS TEXT))
    WHERE state IS NULL OR state NOT IN ('scheduled', 'retrying', 'held') OR (state = 'held' AND aggregate_id IS NULL);
CREATE INDEX IF NOT EXISTS counterfoil_outbox_due
    ON counterfoil_outbox (CAST(coalesce(queue, '') AS TEXT), available_at)
    WHERE state IN ('scheduled', 'retrying');
CREATE INDEX IF NOT EXISTS counterfoil_outbox_lane
    ON counterfoil_outbox (CAST(coalesce(queue, '') AS TEXT), CAST(aggregate_id AS TEXT),
                           CAST(coalesce(aggregate_type, '') AS TEXT))
    WHERE state IN ('retrying', 'held');

-- What cannot pass, with its reason.
CREATE TABLE IF NOT EXISTS counterfoil_parked (
    seq            INTEGER PRIMARY KEY,
    id             TEXT    NOT NULL,
    queue          TEXT    NOT NULL,
    aggregate_type TEXT,
    aggregate_id   TEXT,
    version        INTEGER,
    event_type     TEXT,
    headers        TEXT,
    payload        TEXT,
    payload_bin    BLOB,
    created_at     INTEGER NOT NULL,
    attempts       INTEGER NOT NULL,
    code           TEXT    NOT NULL,
    error          TEXT,
    hold           INTEGER NOT NULL,
    confirm        INTEGER NOT NULL,
    state          TEXT    NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'redriven', 'delivered', 'ignored')),
    redrives       INTEGER NOT NULL DEFAULT 0,
    parked_at      INTEGER NOT NULL,
    updated_at     INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS counterfoil_parked_id ON counterfoil_parked (id);
CREATE INDEX IF NOT EXISTS counterfoil_parked_block
    ON counterfoil_parked (queue, CAST(aggregate_id AS TEXT), CAST(coalesce(aggregate_type, '') AS TEXT))
    WHERE hold AND state IN ('pending', 'redriven');
CREATE INDEX IF NOT EXISTS counterfoil_parked_redriven ON counterfoil_parked (seq) WHERE state = 'redriven';
CREATE INDEX IF NOT EXISTS counterfoil_parked_over ON counterfoil_parked (updated_at)
    WHERE state IN ('delivered', 'ignored');

-- Messages that are over: sent (when they are kept) and cancelled.
CREATE TABLE IF NOT EXISTS counterfoil_history (
    seq            INTEGER PRIMARY KEY,
    id             TEXT,
    queue          TEXT    NOT NULL,
    aggregate_type TEXT,
    aggregate_id   TEXT,
    version        INTEGER,
    event_type     TEXT,
    headers        TEXT,
    payload        TEXT,
    payload_bin    BLOB,
    created_at     INTEGER,
    attempts       INTEGER,
    state          TEXT    NOT NULL,
    detail         TEXT,
    ended_at       INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS counterfoil_history_id ON counterfoil_history (id);
CREATE INDEX IF NOT EXISTS counterfoil_history_ended ON counterfoil_history (ended_at);

-- What happened to messages that did not pass at the first try.
CREATE TABLE IF NOT EXISTS counterfoil_events (
    n       INTEGER PRIMARY KEY AUTOINCREMENT,
    seq     INTEGER NOT NULL,
    id      TEXT    NOT NULL,
    at      INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000.0 + 0.5 AS INTEGER)),
    kind    TEXT    NOT NULL,
    attempt INTEGER,
    code    TEXT,
    detail  TEXT,
    actor   TEXT
);
CREATE INDEX IF NOT EXISTS counterfoil_events_seq ON counterfoil_events (seq);
CREATE INDEX IF NOT EXISTS counterfoil_events_at ON counterfoil_events (at);

-- Keys by which a repeat is recognised after its message is gone.
CREATE TABLE IF NOT EXISTS counterfoil_ledger (
    scope      TEXT    NOT NULL,
    key        TEXT    NOT NULL,
    id         TEXT    NOT NULL,
    created_at INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000.0 + 0.5 AS INTEGER)),
    PRIMARY KEY (scope, key)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS counterfoil_ledger_created ON counterfoil_ledger (created_at);

-- Running relays (queues is a JSON array), and who owns which queue under which fencing number. Whether a
-- relay lives is told by its lock file, not by its row.
CREATE TABLE IF NOT EXISTS counterfoil_relays (
    relay     TEXT    NOT NULL PRIMARY KEY,
    queues    TEXT    NOT NULL,
    joined_at INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000.0 + 0.5 AS INTEGER))
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS counterfoil_shards (
    queue TEXT    NOT NULL,
    shard INTEGER NOT NULL,
    owner TEXT,
    epoch INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (queue, shard)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS counterfoil_queues (
    queue             TEXT NOT NULL PRIMARY KEY,
    paused_at         INTEGER,
    paused_by         TEXT,
    paused_reason     TEXT,
    unavailable_since INTEGER
) WITHOUT ROWID;

-- What follows is how Counterfoil looks at the tables. INDEXED BY and NOT INDEXED (by number, then): whoever runs
-- ANALYZE or PRAGMA optimize while the outbox is all but empty, as it mostly is, would have it scanned from then on.

-- The clock, the same for a whole statement.
CREATE VIEW IF NOT EXISTS counterfoil_now AS
SELECT CAST((julianday('now') - 2440587.5) * 86400000.0 + 0.5 AS INTEGER) AS ms;

-- Names as texts, times as milliseconds whether a number or a text such as '2027-01-31T08:00:00Z' was written. A time
-- that cannot be understood is NULL here and not NULL in the table.
CREATE VIEW IF NOT EXISTS counterfoil_pending AS
SELECT
    *,
    CAST(coalesce(queue, '') AS TEXT) AS queue_name,
    CAST(coalesce(aggregate_type, '') AS TEXT) AS lane_kind,
    CAST(aggregate_id AS TEXT) AS lane_id,
    CASE typeof(created_at)
        WHEN 'integer' THEN created_at
        WHEN 'null' THEN NULL
        WHEN 'real' THEN CAST(created_at AS INTEGER)
        ELSE CAST((julianday(CAST(created_at AS TEXT)) - 2440587.5) * 86400000.0 + 0.5 AS INTEGER)
    END AS created_ms,
    CASE typeof(available_at)
        WHEN 'null' THEN NULL
        WHEN 'integer' THEN available_at
        WHEN 'real' THEN CAST(available_at AS INTEGER)
        ELSE CAST((julianday(CAST(available_at AS TEXT)) - 2440587.5) * 86400000.0 + 0.5 AS INTEGER)
    END AS available_ms
FROM counterfoil_outbox NOT INDEXED;

-- Rows that nobody has put aside. A row that some writer calls held, without an aggregate to be held in, is one.
CREATE VIEW IF NOT EXISTS counterfoil_new AS
SELECT seq, CAST(coalesce(queue, '') AS TEXT) AS queue_name
FROM counterfoil_outbox INDEXED BY counterfoil_outbox_new
WHERE state IS NULL OR state NOT IN ('scheduled', 'retrying', 'held') OR (state = 'held' AND aggregate_id IS NULL);

-- Rows that wait for a time.
CREATE VIEW IF NOT EXISTS counterfoil_timed AS
SELECT seq, CAST(coalesce(queue, '') AS TEXT) AS queue_name, available_at
FROM counterfoil_outbox INDEXED BY counterfoil_outbox_due
WHERE state IN ('scheduled', 'retrying');

-- Rows that wait for another try, and those behind them.
CREATE VIEW IF NOT EXISTS counterfoil_lanes AS
SELECT seq, CAST(coalesce(queue, '') AS TEXT) AS queue_name, CAST(aggregate_id AS TEXT) AS lane_id,
       CAST(coalesce(aggregate_type, '') AS TEXT) AS lane_kind, state
FROM counterfoil_outbox INDEXED BY counterfoil_outbox_lane
WHERE state IN ('retrying', 'held');

-- Parked messages that hold their aggregate back.
CREATE VIEW IF NOT EXISTS counterfoil_blocks AS
SELECT seq, queue AS queue_name, CAST(aggregate_id AS TEXT) AS lane_id,
       CAST(coalesce(aggregate_type, '') AS TEXT) AS lane_kind, state
FROM counterfoil_parked INDEXED BY counterfoil_parked_block
WHERE hold AND state IN ('pending', 'redriven');

-- Rows whose numbers are inserted here are deleted, each found by its number. (DELETE ... WHERE seq IN (...) may be
-- planned as a scan, see above.)
CREATE VIEW IF NOT EXISTS counterfoil_gone AS
SELECT seq FROM counterfoil_outbox;
CREATE TRIGGER IF NOT EXISTS counterfoil_gone_insert INSTEAD OF INSERT ON counterfoil_gone
BEGIN
    DELETE FROM counterfoil_outbox WHERE seq = new.seq;
END;
