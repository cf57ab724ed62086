-- What is remembered of requests: see docs/book/guard.md. A domain may have a table of its own with the
-- same columns, and more: `counterfoil guard table <name>` prints it. All times are UTC.
CREATE TABLE IF NOT EXISTS counterfoil_guard (
    digest        BINARY(32)     NOT NULL,
    fence         BIGINT         NOT NULL,
    created_at    DATETIME(6)    NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    updated_at    DATETIME(6)    NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    expires_at    DATETIME(6)    NOT NULL,
    lease_until   DATETIME(6),
    retry_at      DATETIME(6),
    attempts      INT            NOT NULL,
    status        SMALLINT,
    state         VARCHAR(16)    NOT NULL,
    -- Bytes: 'a' is not 'a ' and not 'A', and no session's character set can change them.
    scope         VARBINARY(255) NOT NULL,
    business_type VARBINARY(255) NOT NULL,
    name          VARBINARY(255) NOT NULL,
    fingerprint   VARBINARY(32)  NOT NULL,
    headers       LONGBLOB,
    body          LONGBLOB,
    -- When a record that is over may be forgotten, and since when nothing happens to one that is not over.
    over_at DATETIME(6) GENERATED ALWAYS AS (
        CASE WHEN state IN (_utf8mb4'succeeded', _utf8mb4'retryable', _utf8mb4'failed') THEN expires_at END) STORED,
    open_at DATETIME(6) GENERATED ALWAYS AS (
        CASE WHEN state IN (_utf8mb4'processing', _utf8mb4'uncertain') THEN updated_at END) STORED,
    PRIMARY KEY (digest),
    KEY counterfoil_guard_over (over_at),
    KEY counterfoil_guard_open (open_at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
