-- What of a breaker survives a restart: an operator's word, and until when it is open by the clock of
-- the process that wrote it. Times in milliseconds.
CREATE TABLE IF NOT EXISTS counterfoil_breakers (
    destination VARBINARY(255) NOT NULL,
    forced      VARCHAR(8),
    forced_by   VARCHAR(255),
    open_until  BIGINT,
    open_for    BIGINT,
    PRIMARY KEY (destination)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
