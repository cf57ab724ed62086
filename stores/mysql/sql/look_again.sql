-- How many. Messages that no route wanted are due now.
UPDATE counterfoil_outbox FORCE INDEX (counterfoil_outbox_due)
SET available_at = UTC_TIMESTAMP(6)
WHERE queue_key = _binary'' AND due_at > UTC_TIMESTAMP(6) AND waiting = 1 AND code = 'NO_ROUTE'
ORDER BY due_at, seq
LIMIT ?
