-- Locks the ownership rows that nobody is using just now: $1 queues, $2 shards.
SELECT s.queue, s.shard
FROM counterfoil_shards s
JOIN unnest($1::text[], $2::smallint[]) AS want (queue, shard) USING (queue, shard)
ORDER BY s.queue, s.shard
FOR UPDATE OF s SKIP LOCKED
