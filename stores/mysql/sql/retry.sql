-- [[number, attempts, code, error, delay in microseconds], ...].
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (
    seq      BIGINT                         PATH '$[0]',
    attempts INT                            PATH '$[1]',
    code     LONGTEXT CHARACTER SET utf8mb4 PATH '$[2]',
    error    LONGTEXT CHARACTER SET utf8mb4 PATH '$[3]',
    delay    BIGINT                         PATH '$[4]')) j
STRAIGHT_JOIN counterfoil_outbox o FORCE INDEX (PRIMARY) ON o.seq = j.seq
SET o.state = 'retrying', o.attempts = j.attempts, o.crashes = 0, o.code = j.code, o.error = j.error,
    o.available_at = UTC_TIMESTAMP(6) + INTERVAL j.delay MICROSECOND
