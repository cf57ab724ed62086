-- $1 digest, $2 fence.
UPDATE counterfoil_guard
SET state = 'uncertain', lease_until = NULL, updated_at = now()
WHERE digest = $1 AND fence = $2 AND state IN ('processing', 'uncertain')
