-- $1 consumer, $2 keys in ascending order. Gives those that were not there.
-- Waits for transactions that have written one of them and are not over.
INSERT INTO counterfoil_inbox (consumer, key)
SELECT $1, u.key
FROM unnest($2::text[]) WITH ORDINALITY AS u (key, n)
ORDER BY u.n
ON CONFLICT DO NOTHING
RETURNING key
