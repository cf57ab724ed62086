-- Closes the parked records of redriven messages that arrived: [[number, ...], ...].
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (seq BIGINT PATH '$[0]')) j
STRAIGHT_JOIN counterfoil_parked p FORCE INDEX (PRIMARY) ON p.seq = j.seq
SET p.state = 'delivered', p.updated_at = UTC_TIMESTAMP(6)
