-- $1 queues, $2 shard bits, $3 after, $4 limits, $5 numbers to leave out, $6 up to which size content comes along.
-- Rows come by want and number; a want whose queue is paused has one row without a number.
-- The horizon is one for the statement, because its snapshot is one.
-- Whether any lane of a queue is taken is asked with LIMIT 1 and by queue: a plan that was made while the table was empty
-- would otherwise go through the whole table, dead rows too, at every read.
WITH w AS MATERIALIZED (
    SELECT
        u.*,
        EXISTS (SELECT FROM counterfoil_queues q WHERE q.queue = u.queue AND q.paused_at IS NOT NULL) AS paused,
        (SELECT true FROM counterfoil_outbox l
         WHERE left(coalesce(l.queue, ''), 255) = u.queue AND l.state IN ('retrying', 'held') LIMIT 1) AS waiting,
        (SELECT true FROM counterfoil_parked p
         WHERE left(p.queue, 255) = u.queue AND p.hold AND p.state IN ('pending', 'redriven') LIMIT 1) AS blocked
    FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $6::bigint[])
        WITH ORDINALITY AS u (queue, shards, after, max_rows, share, n)
)
SELECT
    -- The number of the want, the shard, 2 for early, 1 for behind: a column costs more to hand over than to compute.
    w.n::int * 256 + coalesce(o.shard, 0) * 4
        + CASE WHEN o.available_at > now() THEN 2 ELSE 0 END
        + CASE
            WHEN o.aggregate_id IS NULL OR (w.waiting IS NULL AND w.blocked IS NULL) THEN 0
            WHEN EXISTS (
                SELECT FROM counterfoil_outbox l
                WHERE left(coalesce(l.queue, ''), 255) = w.queue
                  AND md5(octet_length(coalesce(l.aggregate_type, ''))::text || ':' || coalesce(l.aggregate_type, '') || l.aggregate_id) = md5(octet_length(coalesce(o.aggregate_type, ''))::text || ':' || coalesce(o.aggregate_type, '') || o.aggregate_id)
                  AND l.state IN ('retrying', 'held')) THEN 1
            WHEN EXISTS (
                SELECT FROM counterfoil_parked p
                WHERE left(p.queue, 255) = w.queue
                  AND md5(octet_length(coalesce(p.aggregate_type, ''))::text || ':' || coalesce(p.aggregate_type, '') || p.aggregate_id) = md5(octet_length(coalesce(o.aggregate_type, ''))::text || ':' || coalesce(o.aggregate_type, '') || o.aggregate_id)
                  AND p.hold AND p.state IN ('pending', 'redriven')) THEN 1
            ELSE 0
        END AS place,
    (SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint) AS horizon,
    o.seq,
    o.id,
    o.aggregate_type,
    o.aggregate_id,
    o.version,
    o.event_type,
    CASE WHEN o.bytes <= w.share THEN o.payload END,
    CASE WHEN o.bytes <= w.share THEN o.payload_bin END,
    CASE WHEN o.bytes <= w.share THEN o.headers END,
    o.state,
    o.attempts,
    o.crashes,
    o.created_at,
    CASE WHEN o.bytes > w.share THEN o.bytes END AS left_out
FROM w
LEFT JOIN LATERAL (
    -- Nothing is decompressed for this: the length of a long value stands beside it.
    SELECT o.*, coalesce(octet_length(o.payload), 0)::bigint + coalesce(octet_length(o.payload_bin), 0)
        + coalesce(octet_length(o.headers), 0) AS bytes
    FROM counterfoil_outbox o
    WHERE left(coalesce(o.queue, ''), 255) = w.queue
      AND (o.state IS NULL OR o.state NOT IN ('scheduled', 'retrying', 'held')
           OR (o.state = 'held' AND o.aggregate_id IS NULL)
           OR (o.state IN ('scheduled', 'retrying') AND o.available_at IS NULL))
      AND o.seq > w.after
      AND (w.shards >> o.shard) & 1 = 1
      AND o.seq NOT IN (SELECT unnest($5::bigint[]))
    ORDER BY o.seq
    LIMIT CASE WHEN w.paused THEN 0 ELSE w.max_rows END
) o ON true
WHERE w.paused OR o.seq IS NOT NULL
