-- What consumers have processed, or have put off: one row for each (consumer, name). Names are bytes.
CREATE TABLE IF NOT EXISTS counterfoil_inbox (
    consumer     VARBINARY(255) NOT NULL,
    name         VARBINARY(255) NOT NULL,
    -- applied or waiting
    state        VARCHAR(8)     NOT NULL DEFAULT 'applied',
    -- Which call has written the row: by this it knows its own from those that were there.
    mark         BIGINT         NOT NULL,
    processed_at DATETIME(6)    NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    PRIMARY KEY (consumer, name),
    KEY counterfoil_inbox_processed (consumer, state, processed_at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Aggregates that consumers have seen: locked while one of their messages is processed.
CREATE TABLE IF NOT EXISTS counterfoil_inbox_lanes (
    consumer VARBINARY(255) NOT NULL,
    kind     VARBINARY(255) NOT NULL,
    id       VARBINARY(255) NOT NULL,
    version  BIGINT,
    -- A day and no time: an index on something that changes at every message would be expensive.
    touched  DATE           NOT NULL DEFAULT (UTC_DATE()),
    PRIMARY KEY (consumer, kind, id),
    KEY counterfoil_inbox_lanes_touched (consumer, touched)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
