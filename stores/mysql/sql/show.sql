-- Three times: the five spellings of an id, and the number that it spells. Where it stands now comes first.
SELECT place, seq, id, queue, aggregate_type, aggregate_id, version, event_type, state, attempts, available_at,
       created_at, ended_at, code, error, payload, bin, headers
FROM (
    SELECT 'outbox' AS place, o.seq, COALESCE(o.id, '') AS id, COALESCE(o.queue, '') AS queue, o.aggregate_type,
           o.aggregate_id, o.version, COALESCE(o.event_type, '') AS event_type, COALESCE(o.state, 'new') AS state,
           GREATEST(COALESCE(o.attempts, 0), 0) AS attempts,
           TIMESTAMPDIFF(MICROSECOND, '1970-01-01', o.available_at) AS available_at,
           TIMESTAMPDIFF(MICROSECOND, '1970-01-01', o.created_at) AS created_at,
           CAST(NULL AS SIGNED) AS ended_at, o.code, o.error, o.payload,
           CAST(OCTET_LENGTH(o.payload_bin) AS SIGNED) AS bin, o.headers
    FROM (
        SELECT seq FROM counterfoil_outbox WHERE id IN (?, ?, ?, ?, ?)
        UNION SELECT CAST(? AS SIGNED)
    ) n
    STRAIGHT_JOIN counterfoil_outbox o FORCE INDEX (PRIMARY) ON o.seq = n.seq
    UNION ALL
    SELECT 'parked', p.seq, p.id, p.queue, p.aggregate_type, p.aggregate_id, p.version, COALESCE(p.event_type, ''),
           p.state, p.attempts, CAST(NULL AS SIGNED), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', p.created_at),
           TIMESTAMPDIFF(MICROSECOND, '1970-01-01', IF(p.state = 'delivered', p.updated_at, p.parked_at)), p.code,
           p.error, p.payload, CAST(OCTET_LENGTH(p.payload_bin) AS SIGNED), p.headers
    FROM (
        SELECT seq FROM counterfoil_parked WHERE id IN (?, ?, ?, ?, ?)
        UNION SELECT CAST(? AS SIGNED)
    ) n
    STRAIGHT_JOIN counterfoil_parked p FORCE INDEX (PRIMARY) ON p.seq = n.seq
    UNION ALL
    SELECT 'history', h.seq, COALESCE(h.id, ''), h.queue, h.aggregate_type, h.aggregate_id, h.version,
           COALESCE(h.event_type, ''), h.state, COALESCE(h.attempts, 0), CAST(NULL AS SIGNED),
           TIMESTAMPDIFF(MICROSECOND, '1970-01-01', COALESCE(h.created_at, h.ended_at)),
           TIMESTAMPDIFF(MICROSECOND, '1970-01-01', h.ended_at), NULL, h.detail, h.payload,
           CAST(OCTET_LENGTH(h.payload_bin) AS SIGNED), h.headers
    FROM (
        SELECT seq FROM counterfoil_history WHERE id IN (?, ?, ?, ?, ?)
        UNION SELECT CAST(? AS SIGNED)
    ) n
    STRAIGHT_JOIN counterfoil_history h FORCE INDEX (PRIMARY) ON h.seq = n.seq
) found
ORDER BY CASE WHEN place = 'parked' AND state IN ('pending', 'ignored') THEN 0
              WHEN place = 'outbox' THEN 1
              WHEN place = 'history' THEN 2
              ELSE 3 END
LIMIT 1
