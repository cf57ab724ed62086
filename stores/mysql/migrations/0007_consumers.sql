-- How running consumers are, as they say themselves every few seconds (a JSON object).
CREATE TABLE IF NOT EXISTS counterfoil_consumers (
    member      VARBINARY(255) NOT NULL,
    consumer    VARBINARY(255) NOT NULL,
    status      LONGTEXT       NOT NULL,
    reported_at DATETIME(6)    NOT NULL,
    lease_until DATETIME(6)    NOT NULL,
    PRIMARY KEY (member)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
