SELECT consumer, member, lease_until > clock_timestamp(), reported_at, status
FROM counterfoil_consumers
WHERE lease_until >= clock_timestamp() - interval '1 day'
ORDER BY consumer, member
