-- What consumers have processed, or have put off: one row for each (consumer, key).
CREATE TABLE IF NOT EXISTS counterfoil_inbox (
    consumer     text        NOT NULL COLLATE "C",
    key          text        NOT NULL COLLATE "C",
    state        text        NOT NULL DEFAULT 'applied' CHECK (state IN ('applied', 'waiting')),
    processed_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, key)
);
-- Rows come in the order of time, so this one grows at its end and goes at its beginning. (Not brin: rows that fill the
-- gaps which a purge left would make every range as wide as the table is old.)
CREATE INDEX IF NOT EXISTS counterfoil_inbox_processed ON counterfoil_inbox (consumer, processed_at)
    WHERE state = 'applied';

-- Aggregates that consumers have seen: locked while one of their messages is processed.
CREATE TABLE IF NOT EXISTS counterfoil_inbox_lanes (
    consumer text   NOT NULL COLLATE "C",
    kind     text   NOT NULL COLLATE "C",
    id       text   NOT NULL COLLATE "C",
    version  bigint,
    -- A day (UTC) and no time: an index on something that changes at every message would be expensive.
    touched  date   NOT NULL DEFAULT (now() AT TIME ZONE 'UTC')::date,
    PRIMARY KEY (consumer, kind, id)
) WITH (fillfactor = 60);
CREATE INDEX IF NOT EXISTS counterfoil_inbox_lanes_touched ON counterfoil_inbox_lanes (consumer, touched);
