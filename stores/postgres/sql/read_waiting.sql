-- $1 queues, $2 shard bits, $3 limits, $4 numbers to leave out, $5 up to which size content comes along.
-- Retries are the head of their lane; a scheduled row that comes due may find its lane taken.
WITH w AS MATERIALIZED (
    SELECT *
    FROM unnest($1::text[], $2::bigint[], $3::bigint[], $5::bigint[]) WITH ORDINALITY AS u (queue, shards, max_rows, share, n)
    WHERE NOT EXISTS (
        SELECT FROM counterfoil_queues q WHERE q.queue = u.queue AND q.paused_at IS NOT NULL)
)
SELECT
    w.n::int * 256 + o.shard * 4
        + CASE
            WHEN o.state <> 'scheduled' OR o.aggregate_id IS NULL THEN 0
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
    0::bigint AS horizon,
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
CROSS JOIN LATERAL (
    -- Nothing is decompressed for this: the length of a long value stands beside it.
    SELECT o.*, coalesce(octet_length(o.payload), 0)::bigint + coalesce(octet_length(o.payload_bin), 0)
        + coalesce(octet_length(o.headers), 0) AS bytes
    FROM counterfoil_outbox o
    WHERE left(coalesce(o.queue, ''), 255) = w.queue
      AND o.state IN ('scheduled', 'retrying')
      AND o.available_at <= now()
      AND (w.shards >> o.shard) & 1 = 1
      AND o.seq NOT IN (SELECT unnest($4::bigint[]))
    ORDER BY o.available_at, o.seq
    LIMIT w.max_rows
) o
