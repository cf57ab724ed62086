SELECT
    business_type,
    count(*) FILTER (WHERE state = 'processing' AND (lease_until IS NULL OR lease_until > now())) AS processing,
    count(*) FILTER (WHERE state = 'succeeded') AS succeeded,
    count(*) FILTER (WHERE state = 'retryable') AS retryable,
    count(*) FILTER (WHERE state = 'failed') AS failed,
    count(*) FILTER (WHERE state = 'uncertain' OR (state = 'processing' AND lease_until <= now())) AS uncertain,
    extract(epoch FROM now() - min(updated_at) FILTER (WHERE state IN ('processing', 'uncertain')))::float8 AS oldest
FROM counterfoil_guard
GROUP BY business_type
ORDER BY business_type
