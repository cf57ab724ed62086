-- $1 numbers of parked messages. Those before which another one of their lane waits for a decision, and its id.
SELECT c.seq, earlier.id
FROM counterfoil_parked c
CROSS JOIN LATERAL (
    SELECT p.id
    FROM counterfoil_parked p
    WHERE left(p.queue, 255) = left(c.queue, 255)
      AND md5(octet_length(coalesce(p.aggregate_type, ''))::text || ':' || coalesce(p.aggregate_type, '') || p.aggregate_id) = md5(octet_length(coalesce(c.aggregate_type, ''))::text || ':' || coalesce(c.aggregate_type, '') || c.aggregate_id)
      AND p.hold AND p.state IN ('pending', 'redriven')
      AND p.state = 'pending'
      AND p.seq < c.seq
      AND p.seq <> ALL ($1)
    ORDER BY p.seq
    LIMIT 1
) earlier
WHERE c.seq = ANY ($1)
