//! What must hold in the end, asked of the tables.

use counterfoil_core::inbox::queue_of;
use sqlx::postgres::{PgConnection, PgPool};

use super::{CONSUMERS, Report, Stage};
use crate::site::Site;

/// Facts that are to take effect.
const EFFECTS: &str = "SELECT count(*) FROM j_facts WHERE kind NOT IN ('Unknown', 'Broken')";

/// Each must find nothing. `$1` is the name of a consumer, `$2` the queue of what it has put off.
const FOR_EACH_CONSUMER: &[(&str, &str)] = &[
    (
        "an effect is missing",
        "SELECT aggregate, version FROM j_facts f
         WHERE kind NOT IN ('Unknown', 'Broken') AND $2 <> '' AND NOT EXISTS (
             SELECT FROM j_log l WHERE l.consumer = $1 AND l.aggregate = f.aggregate AND l.version = f.version)",
    ),
    (
        "an effect happened twice",
        "SELECT aggregate, version FROM j_log WHERE consumer = $1 AND $2 <> ''
         GROUP BY aggregate, version HAVING count(*) > 1",
    ),
    (
        "something took effect that nobody had committed, or that can never pass",
        "SELECT aggregate, version FROM j_log l
         WHERE consumer = $1 AND $2 <> '' AND NOT EXISTS (
             SELECT FROM j_facts f WHERE f.aggregate = l.aggregate AND f.version = l.version
             AND f.kind = l.kind AND f.kind NOT IN ('Unknown', 'Broken'))",
    ),
    (
        "an aggregate was not processed in its order",
        "SELECT aggregate, version FROM (
             SELECT aggregate, version, lag(version) OVER (PARTITION BY aggregate ORDER BY n) AS before
             FROM j_log WHERE consumer = $1 AND $2 <> '') AS l
         WHERE before >= version",
    ),
    (
        "something that can never pass was not parked exactly once",
        "SELECT aggregate, version FROM j_facts f
         WHERE kind IN ('Unknown', 'Broken') AND $1 <> '' AND 1 <> (
             SELECT count(*) FROM counterfoil_parked p
             WHERE p.queue = $2 AND p.aggregate_id = f.aggregate::text AND p.version = f.version
             AND p.state = 'pending')",
    ),
    (
        "something was parked that could have passed",
        "SELECT p.aggregate_id::int, p.version FROM counterfoil_parked p
         WHERE p.queue = $2 AND $1 <> '' AND NOT EXISTS (
             SELECT FROM j_facts f WHERE f.aggregate::text = p.aggregate_id AND f.version = p.version
             AND f.kind IN ('Unknown', 'Broken'))",
    ),
];

/// Each must find nothing.
const FOR_ALL: &[(&str, &str)] = &[
    (
        "the stock of an item is not what it should be (item, on hand)",
        "SELECT item, on_hand FROM j_stock s WHERE on_hand <> 1000000 - (
             SELECT coalesce(sum(amount), 0) FROM j_facts f
             WHERE f.aggregate = s.item AND f.kind = 'StockTaken')",
    ),
    (
        "the balance of an account is not what it should be (account, balance)",
        "SELECT account, balance FROM j_accounts a WHERE balance <> 1000000
             - (SELECT coalesce(sum(amount), 0) FROM j_facts f
                WHERE f.aggregate = a.account AND f.kind = 'Transferred')
             + (SELECT coalesce(sum(amount), 0) FROM j_facts f
                WHERE f.other = a.account AND f.kind = 'Transferred')",
    ),
    (
        "money was made or lost (accounts, sum)",
        "SELECT count(*)::int, sum(balance)::bigint FROM j_accounts HAVING sum(balance) <> count(*) * 1000000",
    ),
    (
        "something was parked on its way to the broker",
        "SELECT aggregate_id::int, version FROM counterfoil_parked WHERE queue NOT LIKE 'inbox:%'",
    ),
    (
        "something is left in the outbox",
        "SELECT coalesce(aggregate_id::int, 0), coalesce(version, 0) FROM counterfoil_outbox",
    ),
];

pub(super) async fn number(pool: &PgPool, sql: &'static str) -> i64 {
    sqlx::query_scalar(sql).fetch_one(pool).await.unwrap()
}

/// Whether nothing waits any more, and everything that can has taken effect.
pub(super) async fn at_rest(pool: &PgPool) -> bool {
    let effects = number(pool, EFFECTS).await * i64::try_from(CONSUMERS.len()).unwrap();
    number(pool, "SELECT count(*) FROM counterfoil_outbox").await == 0
        && number(pool, "SELECT count(*) FROM j_log").await >= effects
}

/// Whether nine of ten messages have taken effect.
pub(super) async fn nearly_done(pool: &PgPool, messages: i64) -> bool {
    let consumers = i64::try_from(CONSUMERS.len()).unwrap();
    number(pool, "SELECT count(*) FROM j_log").await >= messages * consumers / 10 * 9
}

/// What should not be there: in words, with the aggregates and versions concerned.
async fn violations(database: &mut PgConnection) -> Vec<(String, Vec<(i32, i64)>)> {
    let mut all = Vec::new();
    for consumer in CONSUMERS {
        let queue = queue_of(consumer);
        for (what, sql) in FOR_EACH_CONSUMER {
            let query = sqlx::query_as(*sql).bind(consumer).bind(&queue);
            let found = query.fetch_all(&mut *database).await.unwrap();
            all.push((format!("{consumer}: {what}"), found));
        }
    }
    for (what, sql) in FOR_ALL {
        let query = sqlx::query_as(*sql);
        let found = query.fetch_all(&mut *database).await.unwrap();
        all.push(((*what).to_owned(), found));
    }
    all.retain(|(_, found): &(String, Vec<(i32, i64)>)| !found.is_empty());
    all
}

/// Looks at everything.
pub(super) async fn all(stage: &Stage, report: &mut Report) {
    let pool = &stage.pool;
    let mut database = pool.acquire().await.unwrap();
    for (what, found) in violations(&mut database).await {
        report.found(&what, &found);
    }
    drop(database);
    let audit = stage.site.desk().audit().await.expect("no audit");
    let findings = audit.findings(true);
    report
        .violations
        .extend(findings.iter().map(|f| format!("the audit: {f}")));
    report.committed = number(pool, "SELECT count(*) FROM j_facts").await;
    report.applied = number(pool, "SELECT count(*) FROM j_log").await;
    report.parked = number(pool, "SELECT count(*) FROM counterfoil_parked").await;
    let put_off = "SELECT count(*) FROM counterfoil_history WHERE queue LIKE 'inbox:%'";
    report.put_off = number(pool, put_off).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journey::books;
    use crate::site::PostgresSite;

    /// A journey without a fault: three messages about an item, one about an account, one poisoned.
    const GOOD: &str = "\
INSERT INTO j_facts VALUES (0, 1, 'StockTaken', 2, 0), (0, 2, 'StockTaken', 1, 0), (0, 3, 'StockTaken', 1, 0),
    (1, 1, 'Transferred', 3, 5), (2, 1, 'Broken', 1, 0);
INSERT INTO j_log (consumer, process, aggregate, version, kind)
    SELECT c, 'p', f.aggregate, f.version, f.kind FROM j_facts f, unnest(ARRAY['stock', 'audit']) AS c
    WHERE kind <> 'Broken' ORDER BY f.aggregate, f.version;
UPDATE j_stock SET on_hand = on_hand - 4 WHERE item = 0;
UPDATE j_accounts SET balance = balance - 3 WHERE account = 1;
UPDATE j_accounts SET balance = balance + 3 WHERE account = 5;
INSERT INTO counterfoil_parked (seq, id, queue, shard, aggregate_type, aggregate_id, version, created_at, attempts, code, hold, confirm)
    SELECT n, 'x' || n, 'inbox:' || c, 0, 'thing', '2', 1, now(), 1, 'PARKED_BY_HANDLER', false, true
    FROM unnest(ARRAY['stock', 'audit']) WITH ORDINALITY AS u (c, n);";

    /// What goes wrong, and what is said about it.
    const WRONG: &[(&str, &[&str])] = &[
        (
            "DELETE FROM j_log WHERE consumer = 'audit' AND aggregate = 0 AND version = 2",
            &["audit: an effect is missing"],
        ),
        (
            "INSERT INTO j_log (consumer, process, aggregate, version, kind) VALUES ('audit', 'q', 1, 1, 'Transferred')",
            &["audit: an effect happened twice", "audit: an aggregate was not"],
        ),
        (
            "INSERT INTO j_log (consumer, process, aggregate, version, kind) VALUES ('audit', 'q', 2, 1, 'Broken')",
            &["audit: something took effect that nobody"],
        ),
        (
            "UPDATE j_log SET n = n + 100 WHERE consumer = 'stock' AND aggregate = 0 AND version = 2",
            &["stock: an aggregate was not"],
        ),
        (
            "DELETE FROM counterfoil_parked WHERE queue = 'inbox:stock'",
            &["stock: something that can never pass"],
        ),
        (
            "INSERT INTO counterfoil_parked SELECT 7, 'x7', queue, shard, aggregate_type, aggregate_id, version, event_type,
                headers, payload, payload_bin, created_at, attempts, code, error, hold, confirm
             FROM counterfoil_parked WHERE queue = 'inbox:audit'",
            &["audit: something that can never pass"],
        ),
        (
            "UPDATE counterfoil_parked SET aggregate_id = '0' WHERE queue = 'inbox:audit'",
            &["audit: something that can never pass", "audit: something was parked that"],
        ),
        (
            "UPDATE counterfoil_parked SET queue = 'journey' WHERE queue = 'inbox:audit'",
            &["audit: something that can never pass", "something was parked on its way"],
        ),
        (
            "UPDATE j_stock SET on_hand = on_hand - 1 WHERE item = 2",
            &["the stock of an item"],
        ),
        (
            "UPDATE j_accounts SET balance = balance - 3 WHERE account = 1",
            &["the balance of an account", "money was made or lost"],
        ),
        (
            "INSERT INTO counterfoil_outbox (queue, aggregate_id, version) VALUES ('journey', '3', 1)",
            &["something is left in the outbox"],
        ),
    ];

    #[tokio::test]
    async fn every_fault_is_seen_and_nothing_else() {
        let Some(site) = PostgresSite::fresh().await else {
            return;
        };
        let pool = PgPool::connect(&site.url("check")).await.unwrap();
        books::found(&pool, 10).await;
        sqlx::raw_sql(GOOD).execute(&pool).await.unwrap();
        let mut connection = pool.acquire().await.unwrap();
        assert_eq!(violations(&mut connection).await, []);
        drop(connection);

        for (wrong, said) in WRONG {
            let mut tx = pool.begin().await.unwrap();
            sqlx::raw_sql(*wrong).execute(&mut *tx).await.unwrap();
            let found = violations(&mut tx).await;
            tx.rollback().await.unwrap();

            assert_eq!(found.len(), said.len(), "{wrong}: {found:?}");
            for ((found, _), said) in found.iter().zip(*said) {
                assert!(found.starts_with(said), "{wrong}: {found}");
            }
        }
        pool.close().await;
        site.remove().await;
    }
}
