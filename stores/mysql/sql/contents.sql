-- Numbers of rows whose content did not come along: [number, ...].
SELECT o.seq, o.payload, o.payload_bin, o.headers
FROM JSON_TABLE(?, '$[*]' COLUMNS (seq BIGINT PATH '$')) j
STRAIGHT_JOIN counterfoil_outbox o FORCE INDEX (PRIMARY) ON o.seq = j.seq
