-- [[number, shard], ...], state.
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (seq BIGINT PATH '$[0]')) j
STRAIGHT_JOIN counterfoil_outbox o FORCE INDEX (PRIMARY) ON o.seq = j.seq
SET o.state = ?
