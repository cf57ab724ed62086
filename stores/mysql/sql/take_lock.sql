-- Locks the ownership rows of one queue that nobody is using just now: [shard, ...], queue.
-- MySQL takes no locking clause beside a table function (its error 3569): hence the query around it.
SELECT s.shard, s.owner, s.epoch
FROM (
    SELECT x.shard
    FROM JSON_TABLE(?, '$[*]' COLUMNS (shard SMALLINT PATH '$')) x
) j
STRAIGHT_JOIN counterfoil_shards s FORCE INDEX (PRIMARY) ON s.queue = ? AND s.shard = j.shard
FOR UPDATE SKIP LOCKED
