-- As park_again.sql, for those that have no record yet. Their rows are locked.
INSERT INTO counterfoil_parked
    (seq, id, queue, queue_key, shard, lane, aggregate_type, aggregate_id, version, event_type, headers, payload,
     payload_bin, created_at, attempts, code, error, hold, confirm)
SELECT o.seq, j.id, COALESCE(o.queue, ''), o.queue_key, o.shard, o.lane, o.aggregate_type, o.aggregate_id, o.version,
       o.event_type, o.headers, o.payload, o.payload_bin, o.created_at, j.attempts, j.code, j.error, j.hold, j.confirm
FROM JSON_TABLE(?, '$[*]' COLUMNS (
    seq      BIGINT                            PATH '$[0]',
    id       VARCHAR(64) CHARACTER SET utf8mb4 PATH '$[1]',
    attempts INT                               PATH '$[2]',
    code     LONGTEXT CHARACTER SET utf8mb4    PATH '$[3]',
    error    LONGTEXT CHARACTER SET utf8mb4    PATH '$[4]',
    hold     TINYINT                           PATH '$[5]',
    confirm  TINYINT                           PATH '$[6]')) j
STRAIGHT_JOIN counterfoil_outbox o FORCE INDEX (PRIMARY) ON o.seq = j.seq
WHERE NOT EXISTS (SELECT 1 FROM counterfoil_parked p WHERE p.seq = o.seq)
