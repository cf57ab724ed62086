-- $1 consumer, $2 keys in ascending order. Gives those that were not there.
-- The mark lasts as long as the transaction, see finish.sql.
-- Waits for transactions that have written one of them and are not over.
INSERT INTO counterfoil_inbox (consumer, key)
SELECT $1, u.key
FROM (SELECT set_config('counterfoil.inbox', 'open', true) AS mark) AS m
CROSS JOIN unnest($2::text[]) WITH ORDINALITY AS u (key, n)
WHERE m.mark IS NOT NULL
ORDER BY u.n
ON CONFLICT DO NOTHING
RETURNING key
