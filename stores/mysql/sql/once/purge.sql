-- At most so many.
DELETE FROM counterfoil_tokens WHERE expires_at <= UTC_TIMESTAMP(6) ORDER BY expires_at LIMIT ?
