-- Digest, fence.
DELETE FROM counterfoil_guard
WHERE digest = ? AND fence = ? AND state IN ('processing', 'uncertain')
