-- By primary key: [[scope, name], ...]. A key that was used anew meanwhile is as old as it was.
DELETE l
FROM JSON_TABLE(?, '$[*]' COLUMNS (
    scope VARCHAR(255) CHARACTER SET utf8mb4 PATH '$[0]',
    name  VARCHAR(255) CHARACTER SET utf8mb4 PATH '$[1]')) j
STRAIGHT_JOIN counterfoil_ledger l FORCE INDEX (PRIMARY)
    ON l.scope = CAST(j.scope AS BINARY) AND l.name = CAST(j.name AS BINARY)
