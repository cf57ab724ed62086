-- One-time tokens: issued to somebody, used once. Only a hash of the token is stored.
CREATE TABLE IF NOT EXISTS counterfoil_tokens (
    digest     BINARY(32)     NOT NULL,
    owner      VARBINARY(255) NOT NULL,
    expires_at DATETIME(6)    NOT NULL,
    PRIMARY KEY (digest),
    KEY counterfoil_tokens_expires (expires_at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Locks with a lease and a fencing number. A row stays when its lock is free: the number must grow.
CREATE TABLE IF NOT EXISTS counterfoil_locks (
    name        VARBINARY(255) NOT NULL,
    fence       BIGINT         NOT NULL,
    lease_until DATETIME(6)    NOT NULL,
    PRIMARY KEY (name)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
