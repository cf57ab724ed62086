-- $1 numbers of rows whose content did not come along.
SELECT seq, payload, payload_bin, headers
FROM counterfoil_outbox
WHERE seq = ANY ($1)
