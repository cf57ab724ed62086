-- $1 digest, $2 fence, $3 lease in microseconds, $4 when it was last changed, if that matters.
UPDATE counterfoil_guard
SET lease_until = now() + $3 * interval '1 microsecond', updated_at = now()
-- The state is hidden, so that no plan goes through the small index of open records, which is full of dead ones.
WHERE digest = $1 AND fence = $2 AND coalesce(state, '') = 'processing'
  AND updated_at = coalesce($4, updated_at)
