-- Replaces rows by copies with new numbers: $1 numbers, $2 new ids, $3 new queues (one entry for each copy).
WITH c AS MATERIALIZED (
    SELECT * FROM unnest($1::bigint[], $2::text[], $3::text[]) WITH ORDINALITY AS u (seq, id, queue, n)
), gone AS (
    DELETE FROM counterfoil_outbox o
    USING (SELECT DISTINCT seq FROM c) d
    WHERE o.seq = d.seq
    RETURNING o.*
)
INSERT INTO counterfoil_outbox
    (id, queue, aggregate_type, aggregate_id, version, event_type, headers, payload, payload_bin, created_at,
     available_at)
SELECT c.id, c.queue, gone.aggregate_type, gone.aggregate_id, gone.version, gone.event_type, gone.headers,
       gone.payload, gone.payload_bin, gone.created_at, gone.available_at
FROM gone
JOIN c USING (seq)
ORDER BY c.seq, c.n
