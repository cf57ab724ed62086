-- Three times the five spellings of an id. Where it stands now comes first.
SELECT place, seq, id, queue, aggregate_type, aggregate_id, version, event_type, state, attempts, available_at,
       created_at, ended_at, code, error, payload, bin, headers
FROM (
    SELECT 'outbox' AS place, seq, COALESCE(id, '') AS id, COALESCE(queue, '') AS queue, aggregate_type, aggregate_id,
           version, COALESCE(event_type, '') AS event_type, COALESCE(state, 'new') AS state,
           GREATEST(COALESCE(attempts, 0), 0) AS attempts,
           TIMESTAMPDIFF(MICROSECOND, '1970-01-01', available_at) AS available_at,
           TIMESTAMPDIFF(MICROSECOND, '1970-01-01', created_at) AS created_at,
           CAST(NULL AS SIGNED) AS ended_at, code, error, payload,
           CAST(OCTET_LENGTH(payload_bin) AS SIGNED) AS bin, headers
    FROM counterfoil_outbox WHERE id IN (?, ?, ?, ?, ?)
    UNION ALL
    SELECT 'parked', seq, id, queue, aggregate_type, aggregate_id, version, COALESCE(event_type, ''), state, attempts,
           CAST(NULL AS SIGNED), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', created_at),
           TIMESTAMPDIFF(MICROSECOND, '1970-01-01', IF(state = 'delivered', updated_at, parked_at)), code, error,
           payload, CAST(OCTET_LENGTH(payload_bin) AS SIGNED), headers
    FROM counterfoil_parked WHERE id IN (?, ?, ?, ?, ?)
    UNION ALL
    SELECT 'history', seq, COALESCE(id, ''), queue, aggregate_type, aggregate_id, version, COALESCE(event_type, ''),
           state, COALESCE(attempts, 0), CAST(NULL AS SIGNED),
           TIMESTAMPDIFF(MICROSECOND, '1970-01-01', COALESCE(created_at, ended_at)),
           TIMESTAMPDIFF(MICROSECOND, '1970-01-01', ended_at), NULL, detail, payload,
           CAST(OCTET_LENGTH(payload_bin) AS SIGNED), headers
    FROM counterfoil_history WHERE id IN (?, ?, ?, ?, ?)
) found
ORDER BY CASE WHEN place = 'parked' AND state IN ('pending', 'ignored') THEN 0
              WHEN place = 'outbox' THEN 1
              WHEN place = 'history' THEN 2
              ELSE 3 END
LIMIT 1
