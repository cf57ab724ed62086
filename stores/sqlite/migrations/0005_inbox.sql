-- What consumers have processed, or have put off: one row for each (consumer, key).
CREATE TABLE IF NOT EXISTS counterfoil_inbox (
    consumer     TEXT    NOT NULL,
    key          TEXT    NOT NULL,
    state        TEXT    NOT NULL DEFAULT 'applied' CHECK (state IN ('applied', 'waiting')),
    processed_at INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000.0 + 0.5 AS INTEGER)),
    PRIMARY KEY (consumer, key)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS counterfoil_inbox_applied ON counterfoil_inbox (consumer, processed_at)
    WHERE state = 'applied';

-- Aggregates that consumers have seen, and the highest version of each that was applied.
CREATE TABLE IF NOT EXISTS counterfoil_inbox_lanes (
    consumer TEXT    NOT NULL,
    kind     TEXT    NOT NULL,
    id       TEXT    NOT NULL,
    version  INTEGER,
    -- Days since 1970, UTC, and no time: an index on something that changes at every message would be expensive.
    touched  INTEGER NOT NULL DEFAULT (CAST(julianday('now') - 2440587.5 AS INTEGER)),
    PRIMARY KEY (consumer, kind, id)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS counterfoil_inbox_lanes_touched ON counterfoil_inbox_lanes (consumer, touched);
