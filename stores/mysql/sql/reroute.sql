-- One copy for each destination, with new numbers in the order given: [[number, new id, new queue], ...].
INSERT INTO counterfoil_outbox
    (id, queue, aggregate_type, aggregate_id, version, event_type, headers, payload, payload_bin, created_at,
     available_at)
SELECT c.id, c.queue, o.aggregate_type, o.aggregate_id, o.version, o.event_type, o.headers, o.payload, o.payload_bin,
       o.created_at, o.available_at
FROM JSON_TABLE(?, '$[*]' COLUMNS (
    n     FOR ORDINALITY,
    seq   BIGINT                            PATH '$[0]',
    id    VARCHAR(64) CHARACTER SET utf8mb4 PATH '$[1]',
    queue LONGTEXT CHARACTER SET utf8mb4    PATH '$[2]')) c
STRAIGHT_JOIN counterfoil_outbox o FORCE INDEX (PRIMARY) ON o.seq = c.seq
ORDER BY c.n
