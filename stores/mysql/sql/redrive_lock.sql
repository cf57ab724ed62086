-- Locks parked records that still wait for a decision, in order: [[number, ...], ...].
-- MySQL takes no locking clause beside a table function (its error 3569): hence the query around it.
SELECT p.seq, p.id
FROM (
    SELECT x.seq
    FROM JSON_TABLE(?, '$[*]' COLUMNS (seq BIGINT PATH '$[0]')) x
) j
STRAIGHT_JOIN counterfoil_parked p FORCE INDEX (PRIMARY) ON p.seq = j.seq
WHERE p.state = 'pending'
FOR UPDATE
