-- Name, lease in microseconds. A lock that nobody has taken before.
INSERT INTO counterfoil_locks (name, fence, lease_until)
VALUES (?, LAST_INSERT_ID(TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', UTC_TIMESTAMP(6))),
        UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND)
