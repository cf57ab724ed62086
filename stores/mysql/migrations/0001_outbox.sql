-- The tables of Counterfoil. They live beside your own, in the database of the connection.
--
-- Every step can be run again after a kill in its middle: each statement stands for itself, because the server
-- commits after each anyway. Nothing here depends on the character set or the collation of who runs it.

-- Messages that are not delivered yet. Anybody may INSERT here; docs/book/sql-contract.md says how.
-- No column can make a writer fail: what is left out has a default, what is odd is parked later. All times are UTC.
CREATE TABLE IF NOT EXISTS counterfoil_outbox (
    seq            BIGINT      NOT NULL AUTO_INCREMENT,
    created_at     DATETIME(6) DEFAULT (UTC_TIMESTAMP(6)),
    available_at   DATETIME(6),
    version        BIGINT,
    attempts       INT         DEFAULT 0,
    crashes        INT         NOT NULL DEFAULT 0,
    redriven       TINYINT     NOT NULL DEFAULT 0,
    id             LONGTEXT    DEFAULT (UUID()),
    queue          LONGTEXT,
    aggregate_type LONGTEXT,
    aggregate_id   LONGTEXT,
    event_type     LONGTEXT,
    state          LONGTEXT,
    code           LONGTEXT,
    error          LONGTEXT,
    headers        LONGTEXT,
    payload        LONGTEXT,
    payload_bin    LONGBLOB,

    -- What follows is ours: bytewise ('a' is not 'a ' and not 'A'), short enough for an index, and stored.

    -- One byte more than a queue's name may have: an endless name equals no queue that anybody serves.
    queue_key VARBINARY(256) GENERATED ALWAYS AS (
        LEFT(CAST(COALESCE(queue, _utf8mb4'') AS BINARY), 256)) STORED,
    -- The aggregate. Absent without one, and when its name is over the limit: such a row can only be parked.
    lane BINARY(16) GENERATED ALWAYS AS (
        CASE WHEN OCTET_LENGTH(aggregate_id) <= 255
              AND OCTET_LENGTH(COALESCE(aggregate_type, _utf8mb4'')) <= 255
             THEN UNHEX(LEFT(CONVERT(SHA2(CONCAT(
                      CAST(COALESCE(aggregate_type, _utf8mb4'') AS BINARY), 0x1f,
                      CAST(aggregate_id AS BINARY)), 256) USING ascii), 32))
        END) STORED,
    -- A number below 32, the same for all rows of a lane.
    shard SMALLINT GENERATED ALWAYS AS (
        ASCII(UNHEX(LEFT(CONVERT(SHA2(CONCAT(
            LEFT(CAST(COALESCE(aggregate_type, _utf8mb4'') AS BINARY), 255), 0x1f,
            LEFT(CAST(COALESCE(aggregate_id, id, _utf8mb4'') AS BINARY), 255)), 256) USING ascii), 2))) & 31) STORED,
    -- What `state` says: 0 new or not understood, 1 scheduled, 2 retrying, 3 held.
    standing TINYINT GENERATED ALWAYS AS (
        CASE CAST(state AS BINARY)
             WHEN _binary'scheduled' THEN 1
             WHEN _binary'retrying' THEN 2
             WHEN _binary'held' THEN 3
             ELSE 0
        END) STORED,
    -- Where the relay looks for it: the same, but without a lane nothing can be held behind anything.
    waiting TINYINT GENERATED ALWAYS AS (
        CASE WHEN standing = 3 AND lane IS NULL THEN 0 ELSE standing END) STORED,
    -- When a scheduled or retrying row comes due.
    due_at DATETIME(6) GENERATED ALWAYS AS (
        CASE WHEN waiting IN (1, 2) THEN COALESCE(available_at, TIMESTAMP'1970-01-01 00:00:00') END) STORED,
    -- The lane that this row keeps from being delivered.
    blocks BINARY(16) GENERATED ALWAYS AS (
        CASE WHEN waiting IN (2, 3) THEN lane END) STORED,

    PRIMARY KEY (seq),
    KEY counterfoil_outbox_id (id(64)),
    -- New rows stand in the two other indexes under NULL, one behind the other: cheap to write, never looked at.
    KEY counterfoil_outbox_new (queue_key, waiting, seq, shard, standing),
    KEY counterfoil_outbox_due (queue_key, due_at, seq, shard),
    KEY counterfoil_outbox_blocks (queue_key, blocks, waiting, seq, shard)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- What cannot pass, with its reason.
CREATE TABLE IF NOT EXISTS counterfoil_parked (
    seq            BIGINT         NOT NULL,
    id             VARCHAR(64)    NOT NULL,
    queue          LONGTEXT       NOT NULL,
    queue_key      VARBINARY(256) NOT NULL,
    shard          SMALLINT       NOT NULL,
    lane           BINARY(16),
    aggregate_type LONGTEXT,
    aggregate_id   LONGTEXT,
    version        BIGINT,
    event_type     LONGTEXT,
    headers        LONGTEXT,
    payload        LONGTEXT,
    payload_bin    LONGBLOB,
    created_at     DATETIME(6),
    attempts       INT            NOT NULL,
    code           LONGTEXT       NOT NULL,
    error          LONGTEXT,
    hold           TINYINT        NOT NULL,
    confirm        TINYINT        NOT NULL,
    state          VARCHAR(16)    NOT NULL DEFAULT 'pending',
    redrives       INT            NOT NULL DEFAULT 0,
    parked_at      DATETIME(6)    NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    updated_at     DATETIME(6)    NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    -- The lane that waits for this message.
    blocks BINARY(16) GENERATED ALWAYS AS (
        CASE WHEN hold = 1 AND state IN (_utf8mb4'pending', _utf8mb4'redriven') THEN lane END) STORED,
    PRIMARY KEY (seq),
    KEY counterfoil_parked_id (id),
    KEY counterfoil_parked_state (state, seq),
    KEY counterfoil_parked_updated (state, updated_at),
    KEY counterfoil_parked_block (queue_key, blocks)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Messages that are over: sent (when they are kept) and cancelled.
CREATE TABLE IF NOT EXISTS counterfoil_history (
    seq            BIGINT      NOT NULL,
    id             LONGTEXT,
    queue          LONGTEXT    NOT NULL,
    aggregate_type LONGTEXT,
    aggregate_id   LONGTEXT,
    version        BIGINT,
    event_type     LONGTEXT,
    headers        LONGTEXT,
    payload        LONGTEXT,
    payload_bin    LONGBLOB,
    created_at     DATETIME(6),
    attempts       INT,
    state          VARCHAR(16) NOT NULL,
    detail         LONGTEXT,
    ended_at       DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    PRIMARY KEY (seq),
    KEY counterfoil_history_id (id(64)),
    KEY counterfoil_history_ended (ended_at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- What happened to messages that did not pass at the first try.
CREATE TABLE IF NOT EXISTS counterfoil_events (
    n       BIGINT      NOT NULL AUTO_INCREMENT,
    seq     BIGINT      NOT NULL,
    id      LONGTEXT    NOT NULL,
    at      DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    kind    VARCHAR(16) NOT NULL,
    attempt INT,
    code    LONGTEXT,
    detail  LONGTEXT,
    actor   LONGTEXT,
    PRIMARY KEY (n),
    KEY counterfoil_events_seq (seq),
    KEY counterfoil_events_at (at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Keys by which a repeat is recognised after its message is gone. Counting repeats is what tells the first use from
-- a later one: an update that changes nothing looks like an insert to clients that count found rows, as ours does.
CREATE TABLE IF NOT EXISTS counterfoil_ledger (
    scope      VARBINARY(255) NOT NULL,
    name       VARBINARY(255) NOT NULL,
    id         VARCHAR(64)    NOT NULL,
    repeats    BIGINT         NOT NULL DEFAULT 0,
    created_at DATETIME(6)    NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    PRIMARY KEY (scope, name),
    KEY counterfoil_ledger_id (id),
    KEY counterfoil_ledger_created (created_at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Running relays (their queues as a JSON array), and who owns which shard under which fencing number.
CREATE TABLE IF NOT EXISTS counterfoil_relays (
    relay        VARBINARY(255) NOT NULL,
    queues       LONGTEXT       NOT NULL,
    heartbeat_at DATETIME(6)    NOT NULL,
    lease_until  DATETIME(6)    NOT NULL,
    PRIMARY KEY (relay)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS counterfoil_shards (
    queue VARBINARY(256) NOT NULL,
    shard SMALLINT       NOT NULL,
    owner VARBINARY(255),
    epoch BIGINT         NOT NULL DEFAULT 0,
    PRIMARY KEY (queue, shard)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS counterfoil_queues (
    queue             VARBINARY(256) NOT NULL,
    paused_at         DATETIME(6),
    paused_by         LONGTEXT,
    paused_reason     LONGTEXT,
    unavailable_since DATETIME(6),
    PRIMARY KEY (queue)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- For programs in other languages, inside their own transactions:
--   CALL counterfoil_enqueue('OrderPaid', '{"total": 7}', 'order', '42', 7, NULL, NULL, NULL, NULL);
-- Only the event type and the payload are needed. NULL otherwise means: no aggregate, no version, the routes choose
-- the queue, no headers, at once, a new id. The caller needs EXECUTE, and INSERT on the table. The body is one
-- statement, so that no client needs another delimiter.
DROP PROCEDURE IF EXISTS counterfoil_enqueue;
CREATE PROCEDURE counterfoil_enqueue(
    IN p_event_type     LONGTEXT CHARACTER SET utf8mb4,
    IN p_payload        LONGTEXT CHARACTER SET utf8mb4,
    IN p_aggregate_type LONGTEXT CHARACTER SET utf8mb4,
    IN p_aggregate_id   LONGTEXT CHARACTER SET utf8mb4,
    IN p_version        BIGINT,
    IN p_queue          LONGTEXT CHARACTER SET utf8mb4,
    IN p_headers        LONGTEXT CHARACTER SET utf8mb4,
    IN p_available_at   DATETIME(6),
    IN p_id             LONGTEXT CHARACTER SET utf8mb4
)
MODIFIES SQL DATA
SQL SECURITY INVOKER
INSERT INTO counterfoil_outbox
    (id, queue, aggregate_type, aggregate_id, version, event_type, payload, headers, available_at)
VALUES
    (COALESCE(p_id, UUID()), p_queue, p_aggregate_type, p_aggregate_id, p_version, p_event_type, p_payload, p_headers,
     p_available_at);
