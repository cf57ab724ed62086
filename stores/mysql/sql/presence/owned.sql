SELECT queue, shard, owner FROM counterfoil_shards WHERE owner IS NOT NULL
