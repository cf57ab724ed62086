-- [[scope, key, ...], ...]: the places of those that were used before, and the id under each. They are locked already.
SELECT CAST(j.n AS SIGNED) AS n, l.id
FROM JSON_TABLE(?, '$[*]' COLUMNS (
    n     FOR ORDINALITY,
    scope VARCHAR(255) CHARACTER SET utf8mb4 PATH '$[0]',
    name  VARCHAR(255) CHARACTER SET utf8mb4 PATH '$[1]')) j
STRAIGHT_JOIN counterfoil_ledger l FORCE INDEX (PRIMARY)
    ON l.scope = CAST(j.scope AS BINARY) AND l.name = CAST(j.name AS BINARY)
WHERE l.repeats > 0
