-- Since when a breaker is open, by the clock of the process that wrote it in milliseconds, and what its destination said
-- last. A table of its own, because adding a column to one that is there cannot be repeated everywhere.
CREATE TABLE IF NOT EXISTS counterfoil_outages (
    destination TEXT    NOT NULL PRIMARY KEY,
    since       INTEGER NOT NULL,
    error       TEXT
) WITHOUT ROWID;
