-- As settle_sent.sql, when all of the rows were read as new: none of them has been redriven, so nothing more is to be told.
WITH fence AS MATERIALIZED (
    SELECT s.shard
    FROM counterfoil_shards s
    JOIN unnest($3::smallint[], $4::bigint[]) AS want (shard, epoch) ON want.shard = s.shard AND want.epoch = s.epoch
    WHERE s.queue = $1 AND s.owner = $2
    ORDER BY s.shard
    FOR SHARE OF s
), gone AS (
    -- Bits, because comparing every row with every shard costs as much as finding it.
    DELETE FROM counterfoil_outbox o
    USING unnest($5::bigint[], $6::text[]) AS w (seq, id)
    WHERE o.seq = w.seq
      AND o.id IS NOT DISTINCT FROM w.id
      AND ((SELECT bit_or(1::bigint << shard) FROM fence) >> o.shard) & 1 = 1
)
SELECT (SELECT coalesce(array_agg(shard), '{}') FROM fence) AS held, pg_current_xact_id()::text::bigint AS stamp
