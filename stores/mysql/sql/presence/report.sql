-- member, consumer, status, lease in microseconds.
INSERT INTO counterfoil_consumers (member, consumer, status, reported_at, lease_until)
VALUES (?, ?, ?, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND)
ON DUPLICATE KEY UPDATE
    consumer = VALUES(consumer), status = VALUES(status), reported_at = VALUES(reported_at), lease_until = VALUES(lease_until)
