-- Locks the ownership of shards, in order, and tells which still hold: [[shard, epoch], ...], queue, relay.
-- Also whether any redriven message is on its way: when none is, deliveries need not look for parked records.
-- MySQL takes no locking clause beside a table function (its error 3569): hence the query around it.
SELECT s.shard, EXISTS (SELECT 1 FROM counterfoil_parked WHERE state = 'redriven') AS redriven
FROM (
    SELECT x.shard, x.epoch
    FROM JSON_TABLE(?, '$[*]' COLUMNS (shard SMALLINT PATH '$[0]', epoch BIGINT PATH '$[1]')) x
) j
STRAIGHT_JOIN counterfoil_shards s FORCE INDEX (PRIMARY) ON s.queue = ? AND s.shard = j.shard
WHERE s.owner = ? AND s.epoch = j.epoch
LOCK IN SHARE MODE
