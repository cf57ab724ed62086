-- What of a breaker survives a restart: an operator's word, and until when it is open by the clock of
-- the process that wrote it. Times in milliseconds.
CREATE TABLE IF NOT EXISTS counterfoil_breakers (
    destination TEXT    NOT NULL PRIMARY KEY,
    forced      TEXT    CHECK (forced IN ('open', 'closed')),
    forced_by   TEXT,
    open_until  INTEGER,
    open_for    INTEGER
) WITHOUT ROWID;
