-- As settle_sent.sql, and the rows are kept in the history.
WITH fence AS MATERIALIZED (
    SELECT s.shard
    FROM counterfoil_shards s
    JOIN unnest($3::smallint[], $4::bigint[]) AS want (shard, epoch) ON want.shard = s.shard AND want.epoch = s.epoch
    WHERE s.queue = $1 AND s.owner = $2
    ORDER BY s.shard
    FOR SHARE OF s
), gone AS (
    -- Shards as an array and not in a join: a join would look every row up once for each shard.
    DELETE FROM counterfoil_outbox o
    USING unnest($5::bigint[], $6::text[]) AS w (seq, id)
    WHERE o.seq = w.seq
      AND o.id IS NOT DISTINCT FROM w.id
      AND o.shard = ANY (ARRAY(SELECT shard FROM fence))
    RETURNING o.*
), kept AS (
    INSERT INTO counterfoil_history
        (seq, id, queue, aggregate_type, aggregate_id, version, event_type, headers, payload, payload_bin,
         created_at, attempts, state)
    SELECT seq, id, coalesce(queue, ''), aggregate_type, aggregate_id, version, event_type, headers, payload,
           payload_bin, created_at, least(greatest(coalesce(attempts, 0), 0), 2147483646) + 1, 'sent'
    FROM gone
), delivered AS (
    UPDATE counterfoil_parked p
    SET state = 'delivered', updated_at = now()
    FROM gone
    WHERE gone.redriven AND p.seq = gone.seq
), told AS (
    INSERT INTO counterfoil_events (seq, id, kind, attempt, actor)
    SELECT seq, coalesce(id, ''), 'delivered', least(greatest(coalesce(attempts, 0), 0), 2147483646) + 1, $2 FROM gone WHERE redriven
)
SELECT (SELECT coalesce(array_agg(shard), '{}') FROM fence) AS held, pg_current_xact_id()::text::bigint AS stamp
