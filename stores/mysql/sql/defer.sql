-- [[number, delay in microseconds], ...].
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (seq BIGINT PATH '$[0]', delay BIGINT PATH '$[1]')) j
STRAIGHT_JOIN counterfoil_outbox o FORCE INDEX (PRIMARY) ON o.seq = j.seq
SET o.state = 'scheduled', o.code = 'NO_ROUTE', o.available_at = UTC_TIMESTAMP(6) + INTERVAL j.delay MICROSECOND
