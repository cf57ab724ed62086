-- ?1 rows (a JSON array of [number, id, attempts, code, error, ...]), ?2 what happened, ?3 relay.
INSERT INTO counterfoil_events (seq, id, kind, attempt, code, detail, actor)
SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), ?2, json_extract(value, '$[2]'),
       json_extract(value, '$[3]'), json_extract(value, '$[4]'), ?3
FROM json_each(?1)
WHERE json_extract(value, '$[0]') IN (SELECT seq FROM counterfoil_outbox)
