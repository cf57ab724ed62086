-- ?1 digest, ?2 fence, ?3 when it was last changed, if that matters.
DELETE FROM counterfoil_guard
WHERE digest = ?1 AND fence = ?2 AND state IN ('processing', 'uncertain') AND updated_at = coalesce(?3, updated_at)
