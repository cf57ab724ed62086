-- Digest, fence, when it was last changed in microseconds, if that matters.
DELETE FROM counterfoil_guard
WHERE digest = ? AND fence = ? AND state IN ('processing', 'uncertain')
  AND updated_at = COALESCE(TIMESTAMP'1970-01-01 00:00:00' + INTERVAL ? MICROSECOND, updated_at)
