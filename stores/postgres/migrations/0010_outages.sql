-- Since when a breaker is open, by the clock of the process that wrote it in milliseconds, and what its destination said
-- last. A table of its own, because adding a column to one that is there cannot be repeated everywhere.
CREATE TABLE IF NOT EXISTS counterfoil_outages (
    destination text   PRIMARY KEY,
    since       bigint NOT NULL,
    error       text
);
