-- Locks the ownership of shards, in order, and tells which still hold: $1 queue, $2 relay, $3 shards, $4 epochs.
WITH fence AS MATERIALIZED (
    SELECT s.shard
    FROM counterfoil_shards s
    JOIN unnest($3::smallint[], $4::bigint[]) AS want (shard, epoch) ON want.shard = s.shard AND want.epoch = s.epoch
    WHERE s.queue = $1 AND s.owner = $2
    ORDER BY s.shard
    FOR SHARE OF s
)
SELECT (SELECT coalesce(array_agg(shard), '{}') FROM fence) AS held, pg_current_xact_id()::text::bigint AS stamp
