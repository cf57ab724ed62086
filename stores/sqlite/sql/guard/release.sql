-- ?1 digest, ?2 fence.
DELETE FROM counterfoil_guard
WHERE digest = ?1 AND fence = ?2 AND state IN ('processing', 'uncertain')
