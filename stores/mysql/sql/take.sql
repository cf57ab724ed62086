-- Locked before, and free: [shard, ...], queue, relay.
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (shard SMALLINT PATH '$')) j
STRAIGHT_JOIN counterfoil_shards s FORCE INDEX (PRIMARY) ON s.queue = ? AND s.shard = j.shard
SET s.owner = ?, s.epoch = s.epoch + 1
