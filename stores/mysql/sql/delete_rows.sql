-- By primary key, one after the other: [[number, shard], ...].
DELETE o
FROM JSON_TABLE(?, '$[*]' COLUMNS (seq BIGINT PATH '$[0]', shard SMALLINT PATH '$[1]')) j
STRAIGHT_JOIN counterfoil_outbox o FORCE INDEX (PRIMARY) ON o.seq = j.seq AND o.shard = j.shard
