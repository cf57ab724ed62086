SELECT consumer, member, lease_until > UTC_TIMESTAMP(6), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', reported_at), status
FROM counterfoil_consumers
WHERE lease_until >= UTC_TIMESTAMP(6) - INTERVAL 1 DAY
ORDER BY consumer, member
