-- $1 digest, $2 fence, $3 when it was last changed, if that matters.
DELETE FROM counterfoil_guard
-- The state is hidden, so that no plan goes through the small index of open records, which is full of dead ones.
WHERE digest = $1 AND fence = $2 AND coalesce(state, '') IN ('processing', 'uncertain')
  AND updated_at = coalesce($3, updated_at)
