-- $1 digest, $2 owner.
DELETE FROM counterfoil_tokens WHERE digest = $1 AND owner = $2 AND expires_at > now()
