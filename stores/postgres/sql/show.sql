-- $1 the spellings of an id, $2 the number that it spells. Where it stands now comes first.
SELECT * FROM (
    SELECT 'outbox' AS place, seq, coalesce(id, '') AS id, coalesce(queue, '') AS queue, aggregate_type, aggregate_id,
           version, coalesce(event_type, '') AS event_type, coalesce(state, 'new') AS state,
           greatest(coalesce(attempts, 0), 0) AS attempts,
           CASE WHEN available_at IS NOT NULL
            THEN least(greatest(available_at, '1970-01-01'), '9999-12-31') END AS available_at,
           least(greatest(coalesce(created_at, now()), '1970-01-01'), '9999-12-31') AS created_at,
           NULL::timestamptz AS ended_at, code, error, payload, octet_length(payload_bin)::bigint AS bin, headers
    FROM counterfoil_outbox WHERE left(id, 64) = ANY ($1) OR seq = $2
    UNION ALL
    SELECT 'parked', seq, id, queue, aggregate_type, aggregate_id, version, coalesce(event_type, ''), state, attempts,
           NULL, least(greatest(created_at, '1970-01-01'), '9999-12-31'),
           CASE WHEN state = 'delivered' THEN updated_at ELSE parked_at END, code, error, payload,
           octet_length(payload_bin)::bigint, headers
    FROM counterfoil_parked WHERE left(id, 64) = ANY ($1) OR seq = $2
    UNION ALL
    SELECT 'history', seq, coalesce(id, ''), queue, aggregate_type, aggregate_id, version, coalesce(event_type, ''),
           state, greatest(coalesce(attempts, 0), 0), NULL,
           least(greatest(coalesce(created_at, ended_at), '1970-01-01'), '9999-12-31'), ended_at, NULL, detail,
           payload, octet_length(payload_bin)::bigint, headers
    FROM counterfoil_history WHERE left(id, 64) = ANY ($1) OR seq = $2
) found
ORDER BY CASE WHEN place = 'parked' AND state IN ('pending', 'ignored') THEN 0
              WHEN place = 'outbox' THEN 1 WHEN place = 'history' THEN 2 ELSE 3 END
LIMIT 1
