-- Digest, fence.
UPDATE counterfoil_guard
SET state = 'uncertain', lease_until = NULL, updated_at = UTC_TIMESTAMP(6)
WHERE digest = ? AND fence = ? AND state IN ('processing', 'uncertain')
