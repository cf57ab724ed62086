-- ?1 numbers of rows whose content did not come along (a JSON array).
SELECT o.seq, o.payload, o.payload_bin, o.headers
FROM json_each(?1) n
CROSS JOIN counterfoil_outbox o ON o.seq = n.value
