-- Locks parked records that can still be decided about, in order: [number, ...], whether ignored ones can.
-- Tells the lane of each, as a text. MySQL takes no locking clause beside a table function (its error 3569): hence the
-- query around it.
SELECT p.seq, p.id, CONCAT(HEX(p.queue_key), '/', HEX(p.lane)) AS lane
FROM (
    SELECT x.seq
    FROM JSON_TABLE(?, '$[*]' COLUMNS (seq BIGINT PATH '$')) x
) j
STRAIGHT_JOIN counterfoil_parked p FORCE INDEX (PRIMARY) ON p.seq = j.seq
WHERE p.state = 'pending' OR (p.state = 'ignored' AND ?)
FOR UPDATE
