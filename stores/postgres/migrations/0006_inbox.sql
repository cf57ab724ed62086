-- What consumers have processed, or have put off: one row for each (consumer, key).
CREATE TABLE IF NOT EXISTS counterfoil_inbox (
    consumer     text        NOT NULL COLLATE "C",
    key          text        NOT NULL COLLATE "C",
    state        text        NOT NULL DEFAULT 'applied' CHECK (state IN ('applied', 'waiting')),
    processed_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, key)
);
-- Rows come in the order of time, so this one costs next to nothing.
CREATE INDEX IF NOT EXISTS counterfoil_inbox_processed ON counterfoil_inbox USING brin (processed_at);

-- Aggregates that consumers have seen: locked while one of their messages is processed.
CREATE TABLE IF NOT EXISTS counterfoil_inbox_lanes (
    consumer text   NOT NULL COLLATE "C",
    kind     text   NOT NULL COLLATE "C",
    id       text   NOT NULL COLLATE "C",
    version  bigint,
    -- A day and no time: an index on something that changes at every message would be expensive.
    touched  date   NOT NULL DEFAULT current_date,
    PRIMARY KEY (consumer, kind, id)
) WITH (fillfactor = 60);
CREATE INDEX IF NOT EXISTS counterfoil_inbox_lanes_touched ON counterfoil_inbox_lanes (touched);
