-- [[scope, key, id], ...] in order. A key that is there already is counted as repeated.
INSERT INTO counterfoil_ledger (scope, name, id)
SELECT CAST(j.scope AS BINARY), CAST(j.name AS BINARY), j.id
FROM JSON_TABLE(?, '$[*]' COLUMNS (
    n     FOR ORDINALITY,
    scope VARCHAR(255) CHARACTER SET utf8mb4 PATH '$[0]',
    name  VARCHAR(255) CHARACTER SET utf8mb4 PATH '$[1]',
    id    VARCHAR(64) CHARACTER SET utf8mb4  PATH '$[2]')) j
ORDER BY j.n
ON DUPLICATE KEY UPDATE repeats = counterfoil_ledger.repeats + 1
