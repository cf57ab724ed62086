-- Lines for messages' histories: kind, actor, [[number, id, attempt, code, detail], ...].
INSERT INTO counterfoil_events (seq, id, kind, attempt, code, detail, actor)
SELECT j.seq, j.id, ?, j.attempt, j.code, j.detail, ?
FROM JSON_TABLE(?, '$[*]' COLUMNS (
    n       FOR ORDINALITY,
    seq     BIGINT                              PATH '$[0]',
    id      LONGTEXT CHARACTER SET utf8mb4      PATH '$[1]',
    attempt INT                                 PATH '$[2]',
    code    LONGTEXT CHARACTER SET utf8mb4      PATH '$[3]',
    detail  LONGTEXT CHARACTER SET utf8mb4      PATH '$[4]')) j
ORDER BY j.n
