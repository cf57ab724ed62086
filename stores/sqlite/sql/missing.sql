-- ?1 rows, as in delete_sent.sql. Answers the places, from zero, of those that are not there under this number and id.
SELECT r.place
FROM (
    SELECT key AS place, json_extract(value, '$[0]') AS seq, json_extract(value, '$[1]') AS id FROM json_each(?1)
) r
LEFT JOIN counterfoil_outbox o NOT INDEXED ON o.seq = r.seq
WHERE o.seq IS NULL
   OR NOT CASE
          WHEN r.id IS NULL THEN o.id IS NULL
          WHEN o.id IS NULL THEN false
          WHEN substr(r.id, 1, 1) = 'x' THEN lower(hex(o.id)) = substr(r.id, 2)
          ELSE CAST(o.id AS TEXT) = r.id
      END
