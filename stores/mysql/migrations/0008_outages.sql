-- Since when a breaker is open, by the clock of the process that wrote it in milliseconds, and what its destination said
-- last. A table of its own, because adding a column to one that is there cannot be repeated everywhere.
CREATE TABLE IF NOT EXISTS counterfoil_outages (
    destination VARBINARY(255) NOT NULL,
    since       BIGINT         NOT NULL,
    error       TEXT,
    PRIMARY KEY (destination)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
