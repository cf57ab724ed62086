-- How running consumers are, as they say themselves every few seconds (a JSON object). Times in milliseconds.
CREATE TABLE IF NOT EXISTS counterfoil_consumers (
    member      TEXT    NOT NULL PRIMARY KEY,
    consumer    TEXT    NOT NULL,
    status      TEXT    NOT NULL,
    reported_at INTEGER NOT NULL,
    lease_until INTEGER NOT NULL
) WITHOUT ROWID;
