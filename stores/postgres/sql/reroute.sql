-- Replaces rows by copies with new numbers: $1 numbers, $2 new ids, $3 new queues, $4 ids as they stand in the rows
-- (one entry for each copy), $5 relay. The copies go on where a redriven message has come back.
WITH c AS MATERIALIZED (
    SELECT * FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[]) WITH ORDINALITY AS u (seq, id, queue, written, n)
), gone AS (
    DELETE FROM counterfoil_outbox o
    USING (SELECT DISTINCT seq, written FROM c) d
    WHERE o.seq = d.seq AND o.id IS NOT DISTINCT FROM d.written
    RETURNING o.*
), closed AS (
    UPDATE counterfoil_parked p
    SET state = 'delivered', updated_at = now()
    FROM gone
    WHERE gone.redriven AND p.seq = gone.seq
), told AS (
    INSERT INTO counterfoil_events (seq, id, kind, actor)
    SELECT seq, coalesce(id, ''), 'rerouted', $5 FROM gone WHERE redriven
)
INSERT INTO counterfoil_outbox
    (id, queue, aggregate_type, aggregate_id, version, event_type, headers, payload, payload_bin, created_at,
     available_at)
SELECT c.id, c.queue, gone.aggregate_type, gone.aggregate_id, gone.version, gone.event_type, gone.headers,
       gone.payload, gone.payload_bin, gone.created_at, gone.available_at
FROM gone
JOIN c ON c.seq = gone.seq AND c.written IS NOT DISTINCT FROM gone.id
ORDER BY c.seq, c.n
