-- $1 relay, $2 queues, $3 shards, all locked before. Owners that are not among the relays have died.
WITH free AS MATERIALIZED (
    SELECT s.queue, s.shard, s.owner
    FROM counterfoil_shards s
    JOIN unnest($2::text[], $3::smallint[]) AS want (queue, shard) USING (queue, shard)
    WHERE s.owner IS NULL
       OR NOT EXISTS (SELECT FROM counterfoil_relays r WHERE r.relay = s.owner)
)
UPDATE counterfoil_shards s
SET owner = $1, epoch = s.epoch + 1
FROM free
WHERE s.queue = free.queue AND s.shard = free.shard
RETURNING s.queue, s.shard, s.epoch, free.owner IS NOT NULL AS from_dead
