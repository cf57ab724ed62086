SELECT
    business_type,
    COUNT(CASE WHEN state = 'processing' AND (lease_until IS NULL OR lease_until > UTC_TIMESTAMP(6)) THEN 1 END)
        AS processing,
    COUNT(CASE WHEN state = 'succeeded' THEN 1 END) AS succeeded,
    COUNT(CASE WHEN state = 'retryable' THEN 1 END) AS retryable,
    COUNT(CASE WHEN state = 'failed' THEN 1 END) AS failed,
    COUNT(CASE WHEN state = 'uncertain' OR (state = 'processing' AND lease_until <= UTC_TIMESTAMP(6)) THEN 1 END)
        AS uncertain,
    TIMESTAMPDIFF(MICROSECOND, MIN(open_at), UTC_TIMESTAMP(6)) AS oldest
FROM counterfoil_guard
GROUP BY business_type
ORDER BY business_type
