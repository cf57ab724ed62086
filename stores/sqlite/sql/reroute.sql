-- ?1 copies, in order (a JSON array of [number, new id, new queue]). The originals are deleted afterwards.
INSERT INTO counterfoil_outbox
    (id, queue, aggregate_type, aggregate_id, version, event_type, headers, payload, payload_bin, created_at,
     available_at)
SELECT c.id, c.queue, o.aggregate_type, o.aggregate_id, o.version, o.event_type, o.headers, o.payload, o.payload_bin,
       o.created_at, o.available_at
FROM (
    SELECT json_extract(value, '$[0]') AS seq, json_extract(value, '$[1]') AS id, json_extract(value, '$[2]') AS queue
    FROM json_each(?1)
    ORDER BY 1, key
    LIMIT -1
) c
CROSS JOIN counterfoil_outbox o NOT INDEXED ON o.seq = c.seq
