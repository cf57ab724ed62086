WITH clock (ms) AS (SELECT CAST((julianday('now') - 2440587.5) * 86400000.0 + 0.5 AS INTEGER))
SELECT
    business_type,
    count(*) FILTER (WHERE state = 'processing' AND (lease_until IS NULL OR lease_until > clock.ms)) AS processing,
    count(*) FILTER (WHERE state = 'succeeded') AS succeeded,
    count(*) FILTER (WHERE state = 'retryable') AS retryable,
    count(*) FILTER (WHERE state = 'failed') AS failed,
    count(*) FILTER (WHERE state = 'uncertain' OR (state = 'processing' AND lease_until <= clock.ms)) AS uncertain,
    (clock.ms - min(updated_at) FILTER (WHERE state IN ('processing', 'uncertain'))) / 1000.0 AS oldest
FROM counterfoil_guard, clock
GROUP BY business_type
ORDER BY business_type
