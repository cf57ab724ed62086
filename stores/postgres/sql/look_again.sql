-- $1 how many. Messages that no route wanted are due now.
UPDATE counterfoil_outbox
SET available_at = clock_timestamp()
WHERE seq IN (
    SELECT seq
    FROM counterfoil_outbox
    WHERE left(coalesce(queue, ''), 255) = ''
      AND state IN ('scheduled', 'retrying')
      AND available_at > clock_timestamp()
      AND state = 'scheduled'
      AND code = 'NO_ROUTE'
    LIMIT $1)
