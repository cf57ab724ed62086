-- Reopens the records of redriven messages that failed again:
-- [[number, id, attempts, code, error, hold, confirm], ...].
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (
    seq      BIGINT                         PATH '$[0]',
    attempts INT                            PATH '$[2]',
    code     LONGTEXT CHARACTER SET utf8mb4 PATH '$[3]',
    error    LONGTEXT CHARACTER SET utf8mb4 PATH '$[4]',
    hold     TINYINT                        PATH '$[5]',
    confirm  TINYINT                        PATH '$[6]')) j
STRAIGHT_JOIN counterfoil_parked p FORCE INDEX (PRIMARY) ON p.seq = j.seq
SET p.state = 'pending', p.attempts = j.attempts, p.code = j.code, p.error = j.error, p.hold = j.hold,
    p.confirm = j.confirm, p.parked_at = UTC_TIMESTAMP(6), p.updated_at = UTC_TIMESTAMP(6)
