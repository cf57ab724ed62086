-- $1 consumer, $2 keys in ascending order. Gives those that were not there, or were put off.
INSERT INTO counterfoil_inbox AS i (consumer, key)
SELECT $1, u.key
FROM (SELECT set_config('counterfoil.inbox', 'open', true) AS mark) AS m
CROSS JOIN unnest($2::text[]) WITH ORDINALITY AS u (key, n)
WHERE m.mark IS NOT NULL
ORDER BY u.n
ON CONFLICT (consumer, key) DO UPDATE SET state = 'applied', processed_at = now() WHERE i.state = 'waiting'
RETURNING key
