SELECT member FROM counterfoil_consumers WHERE lease_until < UTC_TIMESTAMP(6) - INTERVAL 1 DAY
