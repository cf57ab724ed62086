-- ?1 rows (a JSON array of [number, id as it stands in the row]; 'x' begins the digits of an id that is no UUID).
-- Through a trigger, which finds each row by its number whatever statistics say.
INSERT INTO counterfoil_gone (seq)
SELECT o.seq
FROM (SELECT json_extract(value, '$[0]') AS seq, json_extract(value, '$[1]') AS id FROM json_each(?1)) r
CROSS JOIN counterfoil_outbox o NOT INDEXED ON o.seq = r.seq
WHERE CASE
          WHEN r.id IS NULL THEN o.id IS NULL
          WHEN substr(r.id, 1, 1) = 'x' THEN lower(hex(o.id)) = substr(r.id, 2)
          ELSE CAST(o.id AS TEXT) = r.id
      END
