-- $1 consumer, $2 kinds, $3 ids, $4 versions.
UPDATE counterfoil_inbox_lanes l
SET version = u.version, touched = current_date
FROM unnest($2::text[], $3::text[], $4::bigint[]) AS u (kind, id, version)
WHERE l.consumer = $1 AND l.kind = u.kind AND l.id = u.id
