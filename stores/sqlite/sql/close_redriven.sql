-- ?1 numbers (a JSON array). Runs before they are deleted: a row that was cancelled meanwhile is not there.
UPDATE counterfoil_parked
SET state = 'delivered', updated_at = (SELECT ms FROM counterfoil_now)
WHERE state = 'redriven'
  AND seq IN (SELECT value FROM json_each(?1))
  AND seq IN (SELECT seq FROM counterfoil_outbox)
RETURNING seq
