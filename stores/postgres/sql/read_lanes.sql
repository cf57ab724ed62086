-- $1 queue, $2 aggregate types, $3 aggregate ids, $4 rows of each lane, $5 up to which size content comes along.
SELECT
    256 + o.shard * 4 AS place,
    0::bigint AS horizon,
    o.seq,
    o.id,
    o.aggregate_type,
    o.aggregate_id,
    o.version,
    o.event_type,
    CASE WHEN o.bytes <= $5 THEN o.payload END,
    CASE WHEN o.bytes <= $5 THEN o.payload_bin END,
    CASE WHEN o.bytes <= $5 THEN o.headers END,
    o.state,
    o.attempts,
    o.crashes,
    o.created_at,
    CASE WHEN o.bytes > $5 THEN o.bytes END AS left_out
FROM unnest($2::text[], $3::text[]) AS w (kind, id)
CROSS JOIN LATERAL (
    -- Nothing is decompressed for this: the length of a long value stands beside it.
    SELECT o.*, coalesce(octet_length(o.payload), 0)::bigint + coalesce(octet_length(o.payload_bin), 0)
        + coalesce(octet_length(o.headers), 0) AS bytes
    FROM counterfoil_outbox o
    WHERE left(coalesce(o.queue, ''), 255) = $1
      AND md5(octet_length(coalesce(o.aggregate_type, ''))::text || ':' || coalesce(o.aggregate_type, '') || o.aggregate_id) = md5(octet_length(w.kind)::text || ':' || w.kind || w.id)
      AND o.state = 'held'
      AND o.state IN ('retrying', 'held')
    ORDER BY o.seq
    LIMIT $4
) o
WHERE NOT EXISTS (
        SELECT FROM counterfoil_outbox l
        WHERE left(coalesce(l.queue, ''), 255) = $1
          AND md5(octet_length(coalesce(l.aggregate_type, ''))::text || ':' || coalesce(l.aggregate_type, '') || l.aggregate_id) = md5(octet_length(w.kind)::text || ':' || w.kind || w.id)
          AND l.state = 'retrying')
  AND NOT EXISTS (
        SELECT FROM counterfoil_parked p
        WHERE left(p.queue, 255) = $1
          AND md5(octet_length(coalesce(p.aggregate_type, ''))::text || ':' || coalesce(p.aggregate_type, '') || p.aggregate_id) = md5(octet_length(w.kind)::text || ':' || w.kind || w.id)
          AND p.hold AND p.state IN ('pending', 'redriven')
          -- A redriven one is a row of the lane like the others.
          AND p.state = 'pending')
ORDER BY o.seq
